#pragma once

#include <ATen/core/Tensor.h>

/// Choices of experts that are even over the tokens by themselves; all on the CPU and without
/// gradient.
namespace dovetail::moe {

/// exp(scores - each row's largest), scaled until rows add to 1 / T and columns to 1 / E (Sinkhorn
/// 1967; Clark et al. 2022): by turns first the rows, then the columns, until the columns' factors
/// change by at most 1e-4 of their mean, or 1000 times. scores (T, E), floating; the result in
/// float64.
at::Tensor sinkhorn(const at::Tensor& scores);

/// One expert for each token, so that each gets floor(T / E) or ceil(T / E) of them and the sum of
/// the tokens' scores is the largest there is (BASE layers, Lewis et al. 2021); (T) int32. scores
/// (T, E), floating: compared to 2^-32 and between -2^14 and 2^14; NaN counts as the least. Exact:
/// a minimum-cost flow by shortest augmenting paths over the experts, O(T E^2) on ordinary scores.
at::Tensor assign_balanced(const at::Tensor& scores);

/// Expert (t k + j) mod E as choice j of token t, (T, k) int32: every expert has its share to
/// within one choice.
at::Tensor assign_in_turn(int64_t tokens, int64_t experts, int64_t k);

}  // namespace dovetail::moe
