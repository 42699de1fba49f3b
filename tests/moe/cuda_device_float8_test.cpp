// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "dovetail/moe/device_float8.h"
#include "dovetail/moe/layer.h"
#include "dovetail/mx/float8_groups.h"
#include "tests/moe/float8_case.h"
#include "tests/moe/graph_case.h"
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
  const auto layer = graph_case::make_layer(
      {.experts = 8, .k = 2}, {.width = kWidth, .activation = "swiglu", .name = "blocks.0.moe"});
  for (const auto& linear : mx::quantizable_linears(*layer)) linear->set_recipe(e4m3_recipe());
  graph_case::expect_one_graph(*layer, kTokens, kWidth, 1.0 / 64,
                               [](const at::Tensor& y) { return y.square().sum(); });
}

}  // namespace
}  // namespace dovetail::moe::cuda_device_float8_test
