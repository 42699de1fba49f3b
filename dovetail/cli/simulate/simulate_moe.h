#pragma once

#include <cstdint>
#include <string>

#include "dovetail/cli/parse/command.h"
#include "dovetail/comm/cost_model.h"
#include "dovetail/moe/simulate.h"
#include "dovetail/report/line_chart.h"

namespace dovetail::cli {

/// Subcommand `dovetail simulate moe`: predicted times of a mixture-of-experts layer.
class SimulateMoe {
 public:
  /// Declares the options of the subcommand.
  void declare(Arguments& arguments);
  /// Runs the subcommand with the parsed options. `plot` is an SVG file to write; empty: none. If
  /// `json`, prints JSON instead of text.
  void run(const std::string& plot, bool json) const;

 private:
  moe::LayerLoad load_for(int ranks) const;
  report::LineChart draw(const comm::CostModel& model) const;

  std::string cost_, payload_ = "bf16", row_for_ = "rank";
  int64_t ranks_ = 0, experts_ = 0, tokens_ = 4096, width_ = 1024, hidden_ = 4096, top_k_ = 2,
          most_shadowed_ = 8;
  double skew_ = 0;
};

}  // namespace dovetail::cli
