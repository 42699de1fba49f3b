#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "dovetail/base/layer_scope.h"
#include "tests/plan/momentum_step.h"

namespace dovetail::plan {

/// Training step of a small network of ATen operators that are hard to capture. These are
/// convolutions, an in-place activation, a skip connection, batch norm with running statistics,
/// dropout and momentum.
class SmallStep : public MomentumStep {
 public:
  explicit SmallStep(int64_t batch = 8, c10::Device device = c10::kCPU) : MomentumStep(0.05) {
    at::manual_seed(1);
    const auto parameter = [&](const char* name, at::IntArrayRef sizes) {
      return add_parameter(name, (at::randn(sizes) * 0.1).to(device).requires_grad_());
    };
    w1_ = parameter("conv1.weight", {16, 3, 3, 3});
    w2_ = parameter("conv2.weight", {16, 16, 3, 3});
    gain_ = parameter("norm.weight", {16});
    shift_ = parameter("norm.bias", {16});
    w3_ = parameter("head.weight", {10, 16 * 8 * 8});
    mean_ = at::zeros({16}, device);
    variance_ = at::ones({16}, device);
    add_state("norm.mean", mean_);
    add_state("norm.variance", variance_);
    images_ = at::randn({batch, 3, 16, 16}).to(device);
    targets_ = at::randint(0, 10, {batch}).to(device);
  }

  std::vector<at::Tensor> operator()() {
    forget_gradients();
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
        x = at::batch_norm(x, gain_, shift_, mean_, variance_, /*training=*/true, 0.1, 1e-5, false)
                .relu();
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
    return train(loss);
  }

 private:
  at::Tensor w1_, w2_, gain_, shift_, w3_, mean_, variance_;
};

}  // namespace dovetail::plan
