#include "dovetail/train/memory/plan_log.h"

#include <fmt/format.h>

#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"

namespace dovetail::train {

void MemoryPlanLog::report(const plan::PlannedStep& step, const std::filesystem::path& folder,
                           bool last_step) {
  if (!step.report()) {
    said_ = measured_ = false;
    return;
  }
  if (said_) {
    if (measured_ || (!step.is_measured() && !last_step)) return;
    measured_ = true;
    return step.write(folder);
  }
  said_ = true;
  const plan::MemoryPlanReport& made = *step.report();
  const auto size = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const auto rate = [](double bytes_per_s) {
    return fmt::format("{}/s", format_bytes(bytes_per_s));
  };
  if (made.process_bytes > 0)
    log_info("memory plan: the process grows by {} above its size before the model (predicted)",
             size(made.process_bytes));
  std::string decisions;
  if (made.offloaded_bytes > 0)
    decisions += fmt::format(", {} offloaded ({} out, {} in, computing {:.0f} % slower)",
                             size(made.offloaded_bytes), rate(made.bandwidth.to_host),
                             rate(made.bandwidth.to_device), 100 * made.bandwidth.slowdown);
  if (made.on_host_bytes > 0)
    decisions += fmt::format(", {} updated where it lies", size(made.on_host_bytes));
  decisions += fmt::format(", {} recomputed", size(made.again_bytes));
  if (made.compressed_bytes > 0)
    decisions +=
        fmt::format(", {} compressed to {}", size(made.compressed_bytes), size(made.packed_bytes));
  log_info(
      "memory plan: {} of {} with everything kept (floor {}); in a step {} operations{}; {:.0f} ms "
      "predicted, {:.0f} ms with everything kept; solved in {:.1f} s",
      size(made.step_bytes), size(made.keep_all_bytes), size(made.floor_bytes), made.nodes,
      decisions, 1e3 * made.predicted_s, 1e3 * made.keep_all_s, made.solve_s);
  step.write(folder);
}

}  // namespace dovetail::train
