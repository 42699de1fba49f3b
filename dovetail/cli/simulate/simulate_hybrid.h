#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/cli/parse/command.h"

namespace dovetail::cli {

/// Subcommand `dovetail simulate hybrid`.
class SimulateHybrid {
 public:
  void declare(Arguments& arguments);
  /// Runs the command. `plot` is a file to draw to, or empty.
  void run(const std::string& plot, bool json) const;

 private:
  std::string cluster_, report_;
  std::vector<std::string> overrides_;
  int64_t nodes_ = 6, most_nodes_ = 1024, runs_ = 200, seed_ = 0;
};

}  // namespace dovetail::cli
