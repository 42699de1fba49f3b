#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/moe/routing.h"

/// Discrete part of routing (moe/routing.h explains its terms), without gradients. Shapes: T
/// tokens, E experts, k choices of a token. CUDA tensors run the kernels of cuda_kernels.h and give
/// the same results.
namespace dovetail::moe {

constexpr int32_t kDropped = -1;  ///< slot of a choice that was dropped

/// Chooses for each token the k experts with the largest score + bias, in descending order. Returns
/// (T, k) int32. scores: (T, E) contiguous, float32 or float64. bias: (E) of the same dtype, or
/// undefined. Reads only k, groups, top_groups and group_score of `spec`.
at::Tensor choose_experts(const at::Tensor& scores, const at::Tensor& bias,
                          const RoutingSpec& spec);

/// Counts how often each of the expert ids 0 to `experts` - 1 occurs in `expert`. Returns (E)
/// int64.
at::Tensor count_choices(const at::Tensor& expert, int64_t experts);

/// Returns the order in which tokens take slots, (T) int64 token indices. It is ascending, or by
/// descending maximum score of the token if spec.batch_prioritized is set.
at::Tensor visiting_order(const at::Tensor& scores, const RoutingSpec& spec);

/// Assigns a slot to each choice. Returns (T, k) int32; a dropped choice has slot -1.
///
/// expert: (T, k) int32, expert of each choice. weight: (T, k), score of each choice, which
/// Drop::kProbability compares. order: result of `visiting_order`. drawn_out: (T) bool or
/// undefined; true if a random draw dropped the token's second choice. capacity: maximum number of
/// slots of an expert, which Drop::kNone ignores.
at::Tensor assign_slots(const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& order,
                        const at::Tensor& drawn_out, int64_t experts, int64_t capacity,
                        const RoutingSpec& spec);

/// Chooses for each column (expert) the `capacity` rows (tokens) with the largest scores, in
/// descending order. Returns (E, capacity) int32.
at::Tensor choose_rows(const at::Tensor& scores, int64_t capacity);

}  // namespace dovetail::moe
