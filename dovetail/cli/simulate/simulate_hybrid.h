#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/cli/parse/command.h"

namespace dovetail::cli {

/// Subcommand `dovetail simulate hybrid`: jobs that CPU cores and GPUs compute together, in virtual
/// time.
class SimulateHybrid {
 public:
  /// Declares the options of the subcommand.
  void declare(Arguments& arguments);
  /// Runs the subcommand with the parsed options. `plot` is an SVG file to write; empty: none. If
  /// `json`, prints JSON instead of text.
  void run(const std::string& plot, bool json) const;

 private:
  std::string cluster_, report_;
  std::vector<std::string> overrides_;
  int64_t nodes_ = 6, most_nodes_ = 1024, runs_ = 200, seed_ = 0;
};

}  // namespace dovetail::cli
