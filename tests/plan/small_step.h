#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/layer_scope.h"
#include "dovetail/plan/capture.h"

namespace dovetail::plan {

/// A small network of ATen's operators with what a capture has to get right: convolutions, an activation in place, a
/// skip, batch norm with running statistics, dropout, and momentum.
class SmallStep {
 public:
  explicit SmallStep(int64_t batch = 8) {
    at::manual_seed(1);
    const auto parameter = [&](const char* name, at::IntArrayRef sizes) {
      parameters_.emplace_back(name, (at::randn(sizes) * 0.1).requires_grad_());
      state_.emplace_back(std::string(name) + ".momentum", at::zeros(sizes));
      return parameters_.back().second;
    };
    w1_ = parameter("conv1.weight", {16, 3, 3, 3});
    w2_ = parameter("conv2.weight", {16, 16, 3, 3});
    gain_ = parameter("norm.weight", {16});
    shift_ = parameter("norm.bias", {16});
    w3_ = parameter("head.weight", {10, 16 * 8 * 8});
    mean_ = at::zeros({16});
    variance_ = at::ones({16});
    state_.emplace_back("norm.mean", mean_);
    state_.emplace_back("norm.variance", variance_);
    images_ = at::randn({batch, 3, 16, 16});
    targets_ = at::randint(0, 10, {batch});
  }

  std::vector<at::Tensor> operator()() {
    for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
    at::Tensor loss;
    {
      const LayerScope net("net");
      at::Tensor x;
      {
        const LayerScope layer("conv1");
        x = at::conv2d(images_, w1_, {}, 1, 1);
      }
      {
        const LayerScope layer("norm");
        x = at::batch_norm(x, gain_, shift_, mean_, variance_, /*training=*/true, 0.1, 1e-5, false).relu();
      }
      const at::Tensor skip = x;
      {
        const LayerScope layer("conv2");
        x = at::max_pool2d(at::dropout(at::conv2d(x, w2_, {}, 1, 1).relu_(), 0.1, true) + skip, 2);
      }
      const LayerScope layer("head");
      x = at::dropout(x.flatten(1), 0.5, /*train=*/true);
      loss = at::cross_entropy_loss(at::linear(x, w3_), targets_);
    }
    torch::autograd::backward({loss}, {});
    const at::NoGradGuard no_grad;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      at::Tensor& momentum = state_[p].second;
      momentum.mul_(0.9).add_(parameters_[p].second.grad());
      parameters_[p].second.add_(momentum, -0.05);
    }
    return {loss.detach()};
  }

  StepTensors tensors() const {
    return {.inputs = {{"images", images_}, {"targets", targets_}}, .parameters = parameters_, .state = state_};
  }

  /// A batch of its own for each step.
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

  at::Tensor images_;

 private:
  std::vector<std::pair<std::string, at::Tensor>> parameters_, state_;
  at::Tensor w1_, w2_, gain_, shift_, w3_, mean_, variance_, targets_;
};

}  // namespace dovetail::plan
