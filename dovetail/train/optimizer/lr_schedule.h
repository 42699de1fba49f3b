#pragma once

#include <cstdint>

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Returns the learning rate of `step` (counted from 0) in a run of `steps` steps. `lr` is the
/// maximum learning rate. The result depends on the arguments only. Let w = warmup_steps and m =
/// min_lr_ratio. The part of the decay that is done is x = (step - w) / (steps - w). By
/// schedule.decay the rate is:
///
/// - warm-up, while step < w: lr * (step + 1) / w
/// - constant: lr
/// - linear: lr * (1 - (1 - m) * x)
/// - cosine: lr * (m + (1 - m) * (1 + cos(pi x)) / 2) (Loshchilov and Hutter 2017)
/// - wsd: lr, then linear over the last decay_fraction * steps (Hu et al. 2024)
double learning_rate(const ScheduleSection& schedule, double lr, int64_t step, int64_t steps);

}  // namespace dovetail::train
