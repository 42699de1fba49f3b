#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

/// Weights of choices, by row. Row r has choice `choice[r]`, which is t k + j for choice j of token
/// t. A padding row has choice T k.
namespace dovetail::moe {

/// Returns the weight of each row, (R). weight: (T, k) of the choices. A padding row has weight 0.
inline at::Tensor weights_of_rows(const at::Tensor& weight, const at::Tensor& choice) {
  return at::cat({weight.reshape(-1), at::zeros({1}, weight.options())}).index_select(0, choice);
}

/// Returns the gradient of `weight` (T, k), given the gradient of weights_of_rows, (R). A choice
/// without a row has gradient 0.
inline at::Tensor weights_gradient(const at::Tensor& of_rows, const at::Tensor& choice,
                                   const at::Tensor& weight) {
  return at::zeros({weight.numel() + 1}, weight.options())
      .index_copy_(0, choice, of_rows)
      .narrow(0, 0, weight.numel())
      .view(weight.sizes());
}

}  // namespace dovetail::moe
