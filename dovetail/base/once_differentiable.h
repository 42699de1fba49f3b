#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <functional>
#include <vector>

/// Operations without a second derivative. Their gradients may be computed with create_graph =
/// True. Differentiating these gradients throws "<op> has no second derivative; <remedy>".
namespace dovetail {

/// Name of an operation as a user calls it, and what a user can do instead.
struct OnceDifferentiable {
  const char *op, *remedy;
};

/// Runs `backward` without recording it, and returns the gradients that it computes. If autograd
/// records the backward pass, the gradients become results of a node that throws. `inputs`: all
/// tensors that the gradients depend on. Some may be undefined.
std::vector<at::Tensor> differentiate_once(
    const OnceDifferentiable& of, at::TensorList inputs,
    const std::function<std::vector<at::Tensor>()>& backward);

/// Returns a kernel for the Autograd key of an operator that computes the gradients of `of`:
///
///     m.impl("moe_route_backward", once_differentiable({"moe_route", "use ..."}));
torch::CppFunction once_differentiable(OnceDifferentiable of);

}  // namespace dovetail
