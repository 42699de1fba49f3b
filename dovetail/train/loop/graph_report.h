#pragma once

#include <cstdint>
#include <string>

#include "dovetail/train/loop/run_output.h"

namespace dovetail::train {

/// Says once whether a step runs as a CUDA graph (run.cuda_graph).
class GraphReport {
 public:
  /// Call it after each step. `recorded`: the graph is recorded, after step `step`. `failure`: why
  /// it could not be recorded; empty if it is or if that was not tried. `output` is null except on
  /// rank 0. Throws UserError for a failure if `asked`, run.cuda_graph, is "on".
  void add(bool recorded, const std::string& failure, const std::string& asked, int64_t step,
           RunOutput* output);

 private:
  bool told_ = false;
};

}  // namespace dovetail::train
