#include "dovetail/train/optimizer/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "dovetail/base/error.h"

namespace dovetail::train {
namespace {

/// Returns the progress of `step` in [begin, end): 0 before it, 1 after it.
double fraction_between(int64_t step, int64_t begin, int64_t end) {
  if (step < begin) return 0.0;
  if (step >= end) return 1.0;
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

}  // namespace

double learning_rate(const ScheduleSection& schedule, double lr, int64_t step, int64_t steps) {
  DOVETAIL_CHECK(step >= 0 && steps > 0, "step {} of {}", step, steps);
  const int64_t warmup = schedule.warmup_steps;
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double low = schedule.min_lr_ratio;
  const double x = fraction_between(step, warmup, steps);
  if (schedule.decay == "constant") return lr;
  if (schedule.decay == "linear") return lr * (1.0 - (1.0 - low) * x);
  if (schedule.decay == "cosine")
    return lr * (low + (1.0 - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * x)));
  DOVETAIL_CHECK(schedule.decay == "wsd", "schedule.decay = {}", schedule.decay);
  const auto decay_steps =
      static_cast<int64_t>(std::ceil(schedule.decay_fraction * static_cast<double>(steps)));
  return lr * (1.0 - (1.0 - low) * fraction_between(step, steps - decay_steps, steps));
}

}  // namespace dovetail::train
