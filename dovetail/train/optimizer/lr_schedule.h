#pragma once

#include <cstdint>

#include "dovetail/train/config/run_config.h"

namespace dovetail {

/// The learning rate of `step` (counted from 0) of a run of `steps`, a function of its arguments
/// alone:
///
///   warm-up   lr * (step + 1) / warmup_steps                      while step < warmup_steps
///   constant  lr
///   linear    lr * (1 - (1 - m) * x)                              x = (step - warmup) / (steps -
///   warmup), m = min_lr_ratio cosine    lr * (m + (1 - m) * (1 + cos(pi x)) / 2) (Loshchilov and
///   Hutter 2017) wsd lr, then linear over the last decay_fraction * steps (Hu et al. 2024)
double learning_rate(const ScheduleSection& schedule, double lr, int64_t step, int64_t steps);

}  // namespace dovetail
