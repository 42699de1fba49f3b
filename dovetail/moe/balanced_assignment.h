#pragma once

#include <ATen/core/Tensor.h>

/// Assignments of experts to tokens that give each expert about the same number of tokens. T tokens
/// choose among E experts. No function has a gradient. The first two compute on the CPU. Scores on
/// a GPU are copied there, so the host waits for them. The result is on the device of the scores.
namespace dovetail::moe {

/// Scales the matrix exp(scores - row maximum) until each row sums to 1/T and each column to 1/E
/// (Sinkhorn 1967; Clark et al. 2022). Each round scales first the rows, then the columns. Rounds
/// stop when the column factors change by at most 1e-4 of their mean, or after 1000 rounds. scores:
/// (T, E), floating. Returns the scaled matrix, (T, E) float64.
at::Tensor sinkhorn(const at::Tensor& scores);

/// Assigns one expert to each token and returns (T) int32 (BASE layers, Lewis et al. 2021). Each
/// expert gets floor(T / E) or ceil(T / E) tokens. Among such assignments, the result has the
/// maximum sum of the tokens' scores for their experts. The maximum is exact: it is found as a
/// minimum-cost flow, by shortest augmenting paths over the experts. Ordinary scores take O(T E^2)
/// time.
///
/// scores: (T, E), floating. They are first rounded to multiples of 2^-32 and clamped to [-2^14,
/// 2^14]; NaN counts as -2^14.
at::Tensor assign_balanced(const at::Tensor& scores);

/// Assigns k experts to each token in turn: expert (t k + j) mod E is choice j of token t. Returns
/// (T, k) int32 on `device`. The numbers of choices of two experts differ by at most one.
at::Tensor assign_in_turn(int64_t tokens, int64_t experts, int64_t k, at::Device device);

}  // namespace dovetail::moe
