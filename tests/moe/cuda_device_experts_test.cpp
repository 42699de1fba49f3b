// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "dovetail/base/gpu.h"
#include "dovetail/moe/device_experts.h"
#include "dovetail/moe/layer.h"
#include "tests/moe/expert_case.h"
#include "tests/moe/graph_case.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::moe::cuda_device_experts_test {
namespace {

using expert_case::Case;
using expert_case::gradients;
using expert_case::make;
using graph_case::largest;

class CudaDeviceExperts : public dovetail::testing::NeedsGpuKernels {
 protected:
  void SetUp() override {
    NeedsGpuKernels::SetUp();
    if (IsSkipped()) return;
    const Case c =
        on(at::kCUDA, make("gelu", {8}, false, {.k = 1, .drop = Drop::kNone}, 1), at::kBFloat16);
    if (const std::string reason = device_rows_obstacle(c.experts); !reason.empty())
      GTEST_SKIP() << reason;
  }

  static Case on(at::Device device, const Case& c, at::ScalarType dtype) {
    Case out = c;
    const auto move = [&](at::Tensor& tensor, at::ScalarType to) {
      tensor = tensor.detach().to(at::kBFloat16).to(device, to).requires_grad_();
    };
    move(out.x, dtype);
    out.weight = out.weight.detach()
                     .to(at::kFloat)
                     .to(device, dtype == at::kDouble ? at::kDouble : at::kFloat)
                     .requires_grad_();
    out.routing.expert = out.routing.expert.to(device);
    out.routing.slot = out.routing.slot.to(device);
    for (auto* list :
         {&out.experts.up, &out.experts.down, &out.experts.up_bias, &out.experts.down_bias})
      for (at::Tensor& tensor : *list) move(tensor, dtype);
    return out;
  }
};

/// Returns y and the gradients of the case's leaves, on the CPU.
std::vector<at::Tensor> results(const at::Tensor& y, const Case& c) {
  std::vector<at::Tensor> all = {y.detach().cpu()};
  for (const at::Tensor& gradient : gradients(y, c)) all.push_back(gradient.cpu());
  return all;
}

/// The GPU's largest error against float64 may be twice the CPU's, plus a rounding of the largest
/// element.
void expect_as_exact_as_the_cpu(const std::vector<at::Tensor>& gpu,
                                const std::vector<at::Tensor>& cpu,
                                const std::vector<at::Tensor>& exact) {
  for (size_t i = 0; i < cpu.size(); ++i) {
    const auto error = [&](const at::Tensor& x) { return largest(x.to(at::kDouble) - exact[i]); };
    EXPECT_LE(error(gpu[i]), 2 * error(cpu[i]) + largest(exact[i]) / 256) << "result " << i;
  }
}

TEST_F(CudaDeviceExperts, AreThoseOfTheCpu) {
  at::Tensor one_expert = at::zeros({203, 4}, at::kDouble);
  one_expert.select(1, 2).fill_(9);
  for (const int64_t tokens : {0, 1, 203}) {
    for (const char* activation : {"swiglu", "gelu", "relu2"}) {
      for (const RoutingSpec& spec :
           {RoutingSpec{.k = 1, .drop = Drop::kNone}, RoutingSpec{.k = 2, .drop = Drop::kNone},
            RoutingSpec{.k = 2, .capacity_factor = 0.6}}) {
        for (const bool bias : {false, true}) {
          SCOPED_TRACE(std::to_string(tokens) + " tokens, " + activation);
          Case c = make(activation, {64, 64, 64, 64}, bias, spec, tokens);
          if (spec.k == 1 && tokens == 203) c.routing = route(one_expert, spec);
          const Case cpu = on(at::kCPU, c, at::kBFloat16), gpu = on(at::kCUDA, c, at::kBFloat16),
                     exact = on(at::kCPU, c, at::kDouble);
          const auto run = [](const Case& of, int64_t capacity) {
            return results(
                feed_forward(of.x, of.weight,
                             device_rows(of.routing.expert, of.routing.slot, 4, capacity),
                             of.experts),
                of);
          };
          const auto wanted =
              results(feed_forward(exact.x, exact.weight, exact.to(), exact.experts), exact);
          expect_as_exact_as_the_cpu(run(gpu, 0), run(cpu, 0), wanted);
          if (c.routing.capacity > 0)
            expect_as_exact_as_the_cpu(run(gpu, c.routing.capacity), run(cpu, c.routing.capacity),
                                       wanted);
        }
      }
    }
  }
}

TEST_F(CudaDeviceExperts, PlacesAreThoseOfTheCpu) {
  const Case c = make("gelu", std::vector<int64_t>(7, 8), false, {.k = 2, .capacity_factor = 0.7});
  for (const int64_t capacity : {int64_t{0}, c.routing.capacity}) {
    const DeviceRows cpu = device_rows(c.routing.expert, c.routing.slot, 7, capacity),
                     gpu = device_rows(c.routing.expert.cuda(), c.routing.slot.cuda(), 7, capacity);
    EXPECT_TRUE(at::equal(gpu.choice.cpu(), cpu.choice));
    EXPECT_TRUE(at::equal(gpu.token.cpu(), cpu.token));
    EXPECT_TRUE(at::equal(gpu.places_of_token.cpu(), cpu.places_of_token));
    EXPECT_TRUE(at::equal(gpu.ends.cpu(), cpu.ends));
    const at::Tensor kept = c.routing.count.clamp_max(c.routing.capacity).cuda();
    const DeviceRows known =
        device_rows(c.routing.expert.cuda(), c.routing.slot.cuda(), 7, capacity, kept);
    EXPECT_TRUE(at::equal(known.choice.cpu(), cpu.choice));
    EXPECT_TRUE(at::equal(known.token.cpu(), cpu.token));
    EXPECT_TRUE(at::equal(known.places_of_token.cpu(), cpu.places_of_token));
    EXPECT_TRUE(at::equal(known.ends.cpu(), cpu.ends));
  }
}

/// Forward and backward of a layer are recorded with one input and replayed with others, whose
/// loads differ.
TEST_F(CudaDeviceExperts, OfALayerAreOneGraph) {
  constexpr int64_t kTokens = 96, kWidth = 64;
  use_own_stream();
  for (const bool pad : {false, true}) {
    Config config = {.experts = 8, .k = 2};
    if (pad) config.drop = "position", config.pad_to_capacity = true;
    const auto layer = graph_case::make_layer(
        config, {.width = kWidth, .activation = "swiglu", .bias = true, .name = "blocks.0.moe"});
    const at::Tensor direction = testing::normal({kTokens, kWidth}, 50)
                                     .to(at::TensorOptions(at::kBFloat16).device(at::kCUDA));
    graph_case::expect_one_graph(*layer, kTokens, kWidth, 1.0 / 128,
                                 [&](const at::Tensor& y) { return (y * direction).sum(); });
  }
}

}  // namespace
}  // namespace dovetail::moe::cuda_device_experts_test
