// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "dovetail/moe/device_float8.h"
#include "dovetail/moe/layer.h"
#include "dovetail/mx/float8_groups.h"
#include "dovetail/ops/gpu_graph.h"
#include "tests/moe/float8_case.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::moe::cuda_device_float8_test {
namespace {

using float8_case::e4m3_recipe;
using float8_case::Linears;
using float8_case::make_linears;

class CudaDeviceFloat8 : public dovetail::testing::NeedsGpuKernels {
 protected:
  void SetUp() override {
    NeedsGpuKernels::SetUp();
    if (IsSkipped()) return;
    const Linears c = make_linears({1}, 16, 16, false).to(at::kCUDA);
    const std::string reason = float8_rows_obstacle(
        {.activation = "gelu", .up = c.weight, .down = c.weight}, e4m3_recipe());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(CudaDeviceFloat8, CodesAndScalesAreThoseOfTheCpu) {
  const Linears c = make_linears({5, 0, 37, 1, 16, 200}, 48, 80, false);
  const ExpertPlaces at = expert_places(c.rows);
  for (const bool power_of_two : {false, true}) {
    const auto run = [&](at::Device device) {
      return mx::quantize_float8_groups(c.x.detach().to(device), at.expert.to(device),
                                        at.counted.to(device), 6, mx::Format::kE4M3, power_of_two);
    };
    const mx::Float8Groups cpu = run(at::kCPU), gpu = run(at::kCUDA);
    EXPECT_TRUE(at::equal(gpu.codes.cpu().view(at::kByte), cpu.codes.view(at::kByte)));
    EXPECT_TRUE(at::equal(gpu.scales.cpu(), cpu.scales));
  }
}

/// Sums of FP8 products on a card have fewer bits than float32. So results may differ by a
/// thousandth of the largest, beside a rounding to bfloat16.
TEST_F(CudaDeviceFloat8, ProductsAreThoseOfTheCpu) {
  for (const bool bias : {false, true}) {
    for (const std::vector<int64_t>& loads :
         {std::vector<int64_t>{5, 0, 37, 1, 16, 200}, {0, 0, 3}, {700}}) {
      const Linears c = make_linears(loads, 128, 272, bias);
      const auto cpu = c.run(e4m3_recipe()), gpu = c.to(at::kCUDA).run(e4m3_recipe());
      const at::Tensor counted = expert_places(c.rows).counted;
      for (size_t i = 0; i < cpu.size(); ++i) {
        const bool rows = i < 2;  // y and dx; spare rows are never read
        const auto read = [&](const at::Tensor& t) {
          const at::Tensor there = t.cpu().to(at::kDouble);
          return rows ? there.masked_fill(counted.logical_not().unsqueeze(1), 0) : there;
        };
        const at::Tensor expected = read(cpu[i]);
        const at::Tensor bound = expected.abs() / 100 + 1e-3 * expected.abs().max().item<double>();
        EXPECT_TRUE((read(gpu[i]) - expected).abs().le(bound).all().item<bool>())
            << "result " << i << " of " << loads.size() << " experts";
      }
    }
  }
}

/// Forward and backward of a layer are recorded with one input and replayed with others, whose
/// loads differ.
TEST_F(CudaDeviceFloat8, OfALayerAreOneGraph) {
  constexpr int64_t kTokens = 96, kWidth = 64;
  use_own_stream();
  const auto layer = std::make_shared<Layer>(
      resolve({.experts = 8, .k = 2}, kWidth),
      Layer::Options{.width = kWidth, .activation = "swiglu", .name = "blocks.0.moe"});
  uint64_t seed = 1;
  for (auto& item : layer->named_parameters()) {
    const at::NoGradGuard no_grad;
    item.value().copy_(0.3 * testing::normal(item.value().sizes(), seed++));
    const bool routes = item.key().starts_with("router");
    item.value().set_data(item.value().to(at::kCUDA, routes ? at::kFloat : at::kBFloat16));
  }
  for (const auto& linear : mx::quantizable_linears(*layer)) linear->set_recipe(e4m3_recipe());
  layer->share_expert_storage();
  ASSERT_EQ(layer->graph_obstacle(), "");
  const at::Tensor x =
      at::zeros({kTokens, kWidth}, at::TensorOptions(at::kBFloat16).device(at::kCUDA))
          .requires_grad_();
  std::vector<at::Tensor> leaves = layer->parameters();
  leaves.push_back(x);
  const auto run = [&] {
    const Layer::Output out = layer->forward(x, {.training = true});
    std::vector<at::Tensor> all = torch::autograd::grad({out.y.square().sum() + out.loss}, leaves,
                                                        {}, std::nullopt, false, true);
    all.push_back(out.y.detach());
    return all;
  };
  const auto set = [&](uint64_t input) {
    const at::NoGradGuard no_grad;
    x.copy_(testing::normal(x.sizes(), input));
    layer->reset_load();
  };
  std::vector<std::vector<at::Tensor>> expected;
  for (const uint64_t input : {60, 61}) {
    set(input);
    expected.push_back(run());
  }
  std::vector<at::Tensor> made;
  ops::GpuGraph graph([&] {
    layer->router().begin_step();
    made = run();
  });
  for (const uint64_t input : {61, 60, 61}) {
    set(input);
    graph.replay();
    const auto& wanted = expected[input - 60];
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double largest = wanted[i].abs().max().item<double>();
      EXPECT_LE((made[i] - wanted[i]).abs().max().item<double>(), largest / 64)
          << "result " << i << " of input " << input;
    }
    EXPECT_EQ(layer->load().choices(), 2 * kTokens);
  }
}

}  // namespace
}  // namespace dovetail::moe::cuda_device_float8_test
