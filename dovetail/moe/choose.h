#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/moe/routing.h"

/// The discrete part of routing: nothing here has a gradient. CUDA tensors run the kernels of
/// cuda_kernels.h, with the same results.
namespace dovetail::moe {

constexpr int32_t kDropped = -1;  ///< slot of a choice that was dropped

/// The k experts of the largest score + bias of each row, descending; (T, k) int32. scores (T, E)
/// contiguous, float32 or float64; bias (E) of that dtype or undefined.
at::Tensor choose_experts(const at::Tensor& scores, const at::Tensor& bias,
                          const RoutingSpec& spec);

/// How often each of `experts` is in `expert`; (E) int64.
at::Tensor count_choices(const at::Tensor& expert, int64_t experts);

/// The order in which tokens take slots, (T) int64: by index, or descending by their largest score.
at::Tensor visiting_order(const at::Tensor& scores, const RoutingSpec& spec);

/// The slot of each choice, (T, k) int32, -1 where it is dropped. `weight` (T, k): the scores of
/// the choices, which Drop::kProbability compares. `drawn_out` (T) bool or undefined: second
/// choices that a draw has dropped. `capacity` is not read with Drop::kNone.
at::Tensor assign_slots(const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& order,
                        const at::Tensor& drawn_out, int64_t experts, int64_t capacity,
                        const RoutingSpec& spec);

/// The `capacity` rows of the largest score of each column, descending; (E, capacity) int32.
at::Tensor choose_rows(const at::Tensor& scores, int64_t capacity);

}  // namespace dovetail::moe
