#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <vector>

#include "dovetail/moe/layer.h"
#include "dovetail/ops/gpu_graph.h"
#include "tests/moe/random.h"

/// Layer of experts whose step is a CUDA graph.
namespace dovetail::moe::graph_case {

/// Returns the largest magnitude of x.
inline double largest(const at::Tensor& x) {
  return x.numel() == 0 ? 0 : x.to(at::kDouble).abs().max().item<double>();
}

/// Makes a layer with random parameters on the GPU: the router's in float32, the experts' in
/// bfloat16.
inline std::shared_ptr<Layer> make_layer(const Config& config, const Layer::Options& options) {
  const auto layer = std::make_shared<Layer>(resolve(config, options.width), options);
  uint64_t seed = 1;
  for (auto& item : layer->named_parameters()) {
    const at::NoGradGuard no_grad;
    item.value().copy_(0.3 * testing::normal(item.value().sizes(), seed++));
    const bool routes = item.key().starts_with("router");
    item.value().set_data(item.value().to(at::kCUDA, routes ? at::kFloat : at::kBFloat16));
  }
  return layer;
}

/// Records forward and backward of `layer` with one input of `tokens` rows. Replays them with
/// others, whose loads differ. Results may differ from steps without a graph by `tolerance` of
/// their largest magnitude. loss: scalar of the layer's y.
inline void expect_one_graph(Layer& layer, int64_t tokens, int64_t width, double tolerance,
                             const std::function<at::Tensor(const at::Tensor& y)>& loss) {
  layer.share_expert_storage();
  ASSERT_EQ(layer.graph_obstacle(), "");
  const at::Tensor x =
      at::zeros({tokens, width}, at::TensorOptions(at::kBFloat16).device(at::kCUDA))
          .requires_grad_();
  std::vector<at::Tensor> leaves = layer.parameters();
  leaves.push_back(x);
  const auto run = [&] {
    const Layer::Output out = layer.forward(x, {.training = true});
    std::vector<at::Tensor> all =
        torch::autograd::grad({loss(out.y) + out.loss}, leaves, {}, std::nullopt, false, true);
    all.push_back(out.y.detach());
    return all;
  };
  const auto set = [&](uint64_t input) {
    const at::NoGradGuard no_grad;
    x.copy_(testing::normal(x.sizes(), input));
    layer.reset_load();
  };
  std::vector<std::vector<at::Tensor>> expected;
  for (const uint64_t input : {60, 61}) {
    set(input);
    expected.push_back(run());
  }
  std::vector<at::Tensor> made;
  ops::GpuGraph graph([&] {
    layer.router().begin_step();
    made = run();
  });
  for (const uint64_t input : {61, 60, 61}) {
    set(input);
    graph.replay();
    const auto& wanted = expected[input - 60];
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_LE(largest(made[i].to(at::kDouble) - wanted[i].to(at::kDouble)),
                largest(wanted[i]) * tolerance)
          << "result " << i << " of input " << input;
    EXPECT_EQ(layer.load().choices(), 2 * tokens);
  }
}

}  // namespace dovetail::moe::graph_case
