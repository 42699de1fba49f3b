#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace dovetail::moe {

/// Weights of E experts. Expert e is a feed-forward of hidden width f_e; widths may differ.
///
/// Shapes: up[e] (u_e, C), down[e] (C, f_e), up_bias[e] (u_e), down_bias[e] (C). u_e =
/// mx::up_width(activation, f_e), which is larger than f_e if the activation has a gate. All have
/// one dtype. Bias lists are empty if there are no biases.
struct ExpertWeights {
  std::string activation;  ///< "swiglu", "gelu" or "relu2"
  std::vector<at::Tensor> up, down, up_bias, down_bias;

  size_t experts() const { return up.size(); }
};

/// Checks the operands of the experts' products: x (T, C), the weights of the choices (T, k), and
/// `experts` of E = `count` experts. Throws UserError naming the tensor that does not fit.
void check_experts(const at::Tensor& x, const at::Tensor& weight, const ExpertWeights& experts,
                   int64_t count);

/// Returns `tensors`, which have equal sizes, as one tensor (E, ...). It is a view without a copy
/// if they lie one after another in one storage (`share_storage`), from a multiple of 16 bytes on.
at::Tensor stacked(at::TensorList tensors);

/// Moves `tensors`, parameters of equal sizes, into one storage, one after another. Their values,
/// sizes and identities stay.
void share_storage(at::TensorList tensors);

}  // namespace dovetail::moe
