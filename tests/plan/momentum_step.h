#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/plan/record/capture.h"

namespace dovetail::plan {

/// Common part of training steps on images. It has parameters and optimizer state, as values that
/// can be read and set, and SGD with momentum.
class MomentumStep {
 public:
  StepTensors tensors() const {
    return {.inputs = {{"images", images_}, {"targets", targets_}},
            .parameters = parameters_,
            .state = state_};
  }

  /// Sets the batch of a step; each step has a different one.
  void new_batch(uint64_t step) {
    auto generator = at::detail::createCPUGenerator(step);
    images_.copy_(at::randn(images_.sizes(), generator));
    targets_.copy_(at::randint(0, 10, targets_.sizes(), generator));
  }

  /// Copies of everything that a step changes.
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> out;
    for (const auto* list : {&parameters_, &state_})
      for (const auto& [name, tensor] : *list) out.push_back(tensor.detach().clone());
    return out;
  }
  void set(const std::vector<at::Tensor>& values) {
    size_t i = 0;
    for (const auto* list : {&parameters_, &state_})
      for (const auto& [name, tensor] : *list) tensor.detach().copy_(values[i++]);
  }

 protected:
  explicit MomentumStep(double rate) : rate_(rate) {}

  /// Adds a parameter and its momentum. All parameters must be added before other state.
  at::Tensor add_parameter(const std::string& name, const at::Tensor& parameter) {
    parameters_.emplace_back(name, parameter);
    state_.emplace_back(name + ".momentum", at::zeros_like(parameter.detach()));
    return parameter;
  }
  void add_state(const std::string& name, const at::Tensor& tensor) {
    state_.emplace_back(name, tensor);
  }

  void forget_gradients() {
    for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
  }
  /// Runs backward and the update. Returns the step's results.
  std::vector<at::Tensor> train(const at::Tensor& loss) {
    torch::autograd::backward({loss}, {});
    const at::NoGradGuard no_grad;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      at::Tensor& momentum = state_[p].second;
      momentum.mul_(0.9).add_(parameters_[p].second.grad());
      parameters_[p].second.add_(momentum, -rate_);
    }
    return {loss.detach()};
  }

  at::Tensor images_, targets_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_, state_;

 private:
  double rate_;
};

}  // namespace dovetail::plan
