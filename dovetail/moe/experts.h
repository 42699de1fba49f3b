#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "dovetail/moe/dispatch.h"
#include "dovetail/moe/expert_weights.h"

namespace dovetail::moe {

/// Runs each token through its experts: y[t] = sum of weight[t][j] * down(activation(up(x[t])))
/// over the choices j of token t that `to` contains. `up` and `down` belong to the choice's expert.
///
/// x: (T, C) in the dtype of the experts. weight: (T, k); y: (T, C). Both are float32, or x's dtype
/// if that is wider. No expert's rows are padded to a capacity (MegaBlocks' dropless experts, Gale
/// et al. 2022).
///
/// - float32 or bfloat16 on the CPU: one kernel runs all experts without copies of rows. Its
///   products gather tokens from x and add their results to rows of y.
/// - bfloat16 on the CPU if `multiplies_bfloat16_rows` (ops/gemm.h) is false: oneDNN multiplies a
///   copy of one expert's rows at a time.
/// - float32 or bfloat16 on a GPU: rows are copied to the experts, run through `feed_forward_rows`
///   and copied back. Each product is one grouped product of all experts.
/// - all other cases: `apply_experts`
///
/// Backward needs x and the outputs of `up`, which are kept. Sums are in float32; the experts of a
/// token are added in their order. Throws UserError naming the tensor.
at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                        const ExpertWeights& experts);

/// Computes down(activation(up(row))) for each row with the weights of its expert. Returns (R, C).
/// rows: (R, C) sorted by expert. count[e]: number of rows of expert e.
at::Tensor feed_forward_rows(const at::Tensor& rows, const std::vector<int64_t>& count,
                             const ExpertWeights& experts);

/// Computes the same sums as `feed_forward` with any experts, given as a function (FastMoE, He et
/// al. 2021). It runs one expert after another on copies of their rows. A call expert(e, rows of e)
/// returns one result row for each input row. Experts without rows run, too, so that they get
/// gradients of zeros. All ranks then have the same set of gradients.
at::Tensor apply_experts(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                         const std::function<at::Tensor(int64_t, const at::Tensor&)>& expert);

/// Runs `expert` on `rows`. It returns one result row for each input row. In bfloat16 its input may
/// end with rows of zeros. They round the number of rows up, since oneDNN compiles code for each.
/// Returns the results of `rows` alone.
at::Tensor run_padded(const at::Tensor& rows,
                      const std::function<at::Tensor(const at::Tensor&)>& expert);

}  // namespace dovetail::moe
