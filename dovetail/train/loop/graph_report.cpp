#include "dovetail/train/loop/graph_report.h"

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"

namespace dovetail::train {

void GraphReport::add(bool recorded, const std::string& failure, const std::string& asked,
                      int64_t step, RunOutput* output) {
  if (told_ || (!recorded && failure.empty())) return;
  told_ = true;
  user_check(failure.empty() || asked != "on",
             "run.cuda_graph = \"on\", but the step cannot be recorded: {}", failure);
  if (output == nullptr) return;
  if (failure.empty()) {
    log_info("forward and backward run as one CUDA graph from step {} on", step);
  } else {
    output->warn("forward and backward run without a CUDA graph: " + failure);
  }
}

}  // namespace dovetail::train
