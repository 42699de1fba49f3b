#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "dovetail/moe/dispatch.h"

namespace dovetail::moe {

/// The weights of E feed-forwards, each of its own width f_e: up[e] (up_width(activation, f_e), C),
/// down[e] (C, f_e), up_bias[e] (up_width), down_bias[e] (C); all of one dtype; no biases: empty.
struct ExpertWeights {
  std::string activation;  ///< "swiglu", "gelu" or "relu2"
  std::vector<at::Tensor> up, down, up_bias, down_bias;

  size_t experts() const { return up.size(); }
};

/// y[t] = sum over the choices of token t that `to` holds of weight * down(activation(up(x[t]))),
/// of the choice's expert.
///
/// x (T, C) in the dtype of the experts; weight (T, k) and y (T, C) float32, or x's where that is
/// wider. No expert's rows are padded (MegaBlocks' dropless experts, Gale et al. 2022). Our kernel
/// runs float32 and bfloat16 on the CPU, all experts at once, and copies no rows: products read
/// tokens where they lie and add into where they go. Without `multiplies_bfloat16_rows`
/// (ops/gemm.h) bfloat16 products are oneDNN's, on a copy of one expert's rows at a time. Kept for
/// backward: x and what `up` made. On a GPU both dtypes are `feed_forward_rows` between rows that
/// are copied to the experts and back, all experts in one grouped product each way. Everything else
/// is `apply_experts`. Sums are in float32, a token's experts in their order. Throws UserError
/// naming the tensor.
at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                        const ExpertWeights& experts);

/// down(activation(up(row))) of each row: rows (R, C) sorted by expert, count[e] of them of expert
/// e. (R, C).
at::Tensor feed_forward_rows(const at::Tensor& rows, const std::vector<int64_t>& count,
                             const ExpertWeights& experts);

/// `feed_forward` of experts of any kind (FastMoE, He et al. 2021), one after another on copies of
/// their rows: expert(e, rows of e) has as many rows, among them in bfloat16 some of zeros behind
/// the last. All run, also those without rows: their gradients are zeros then, and every rank has
/// the same ones.
at::Tensor apply_experts(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                         const std::function<at::Tensor(int64_t, const at::Tensor&)>& expert);

}  // namespace dovetail::moe
