#include "dovetail/base/once_differentiable.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>

namespace dovetail {

namespace {

/// Makes the node that throws. Returns null if nobody can differentiate the gradients.
std::shared_ptr<torch::autograd::Node> refusal(const OnceDifferentiable& of,
                                               at::TensorList inputs) {
  if (!at::GradMode::is_enabled() || std::ranges::none_of(inputs, [](const at::Tensor& input) {
        return input.defined() && input.requires_grad();
      }))
    return nullptr;
  return std::make_shared<torch::autograd::Error>(
      fmt::format("{} has no second derivative; {}", of.op, of.remedy),
      torch::autograd::collect_next_edges(inputs));
}

bool is_differentiable(const at::Tensor& gradient) {
  return gradient.defined() && at::isFloatingType(gradient.scalar_type());
}

void append_tensors(const c10::IValue& value, std::vector<at::Tensor>& to) {
  if (value.isTensor()) {
    to.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) to.push_back(tensor);
  }
}

class Kernel : public c10::OperatorKernel {
 public:
  explicit Kernel(OnceDifferentiable of) : of_(of) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, c10::Stack* stack) {
    std::vector<at::Tensor> inputs;
    for (const c10::IValue& argument : torch::jit::last(*stack, handle.schema().arguments().size()))
      append_tensors(argument, inputs);
    const auto node = refusal(of_, inputs);
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      handle.callBoxed(stack);
    }
    if (!node) return;
    std::vector<at::Tensor> gradients;
    for (const c10::IValue& result : torch::jit::last(*stack, handle.schema().returns().size()))
      append_tensors(result, gradients);
    for (const at::Tensor& gradient : gradients)
      if (is_differentiable(gradient)) torch::autograd::set_history(gradient, node);
  }

 private:
  OnceDifferentiable of_;
};

}  // namespace

std::vector<at::Tensor> differentiate_once(
    const OnceDifferentiable& of, at::TensorList inputs,
    const std::function<std::vector<at::Tensor>()>& backward) {
  const auto node = refusal(of, inputs);
  std::vector<at::Tensor> gradients;
  {
    const at::NoGradGuard no_grad;
    gradients = backward();
    if (!node) return gradients;
    for (at::Tensor& gradient : gradients)  // it may be a tensor of the caller
      if (is_differentiable(gradient)) gradient = gradient.detach();
  }
  for (const at::Tensor& gradient : gradients)
    if (is_differentiable(gradient)) torch::autograd::set_history(gradient, node);
  return gradients;
}

torch::CppFunction once_differentiable(OnceDifferentiable of) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(of));
}

}  // namespace dovetail
