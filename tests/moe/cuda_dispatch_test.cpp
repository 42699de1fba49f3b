// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "dovetail/moe/cuda_kernels.h"
#include "dovetail/moe/dispatch.h"
#include "dovetail/moe/routing.h"
#include "tests/moe/random.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::moe::cuda_dispatch_test {
namespace {

using testing::expect_close;
using testing::user_error;

class CudaDispatch : public dovetail::testing::NeedsGpuKernels {};

at::Tensor on_gpu(const at::Tensor& x) { return x.to(at::kCUDA); }

/// Choices of tokens. Some are dropped, some of them by a random draw, which leaves slots empty.
struct Case {
  const char* what;
  int64_t experts;
  Routing routing;
};

std::vector<Case> cases() {
  const auto routed = [](const at::Tensor& logits, const RoutingSpec& spec) {
    return route(logits, spec,
                 {.draw = spec.k == 2 ? random({logits.size(0)}, 2).abs() : at::Tensor()});
  };
  at::Tensor one_expert = at::zeros({65, 5}, at::kDouble);
  one_expert.select(1, 3).fill_(9);
  return {{"no tokens", 4, routed(random({0, 4}, 1), {.k = 2})},
          {"one token", 4, routed(random({1, 4}, 1), {.k = 3, .drop = Drop::kNone})},
          {"all to one expert", 5, routed(one_expert, {.k = 1, .drop = Drop::kNone})},
          {"drops and draws", 7, routed(random({611, 7}, 3), {.k = 2, .capacity_factor = 0.7})},
          {"empty experts", 300, routed(random({90, 300}, 4), {.k = 2, .drop = Drop::kNone})},
          {"many choices", 64,
           routed(random({333, 64}, 5), {.k = 8, .slot_order = SlotOrder::kToken})}};
}

TEST_F(CudaDispatch, RowsAreThoseOfTheCpu) {
  for (const auto& [what, experts, routing] : cases()) {
    SCOPED_TRACE(what);
    const Dispatch cpu = dispatch(routing.expert, routing.slot, experts),
                   gpu = dispatch(on_gpu(routing.expert), on_gpu(routing.slot), experts);
    EXPECT_EQ(gpu.rows().offsets, cpu.rows().offsets);
    EXPECT_TRUE(at::equal(gpu.choice().cpu(), cpu.choice()));
    EXPECT_TRUE(at::equal(gpu.token().cpu(), cpu.token()));
  }
}

/// Runs dispatch and combine. Returns results and the gradients of x, the rows and the weights.
std::vector<at::Tensor> there_and_back(const Case& c, int64_t width, at::ScalarType dtype,
                                       at::Device device, int64_t capacity) {
  const auto sums = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor expert = c.routing.expert.to(device), slot = c.routing.slot.to(device);
  const Dispatch to = capacity > 0 ? padded_dispatch(expert, slot, c.experts, capacity)
                                   : dispatch(expert, slot, c.experts);
  const at::Tensor x =
      random({c.routing.expert.size(0), width}, 6).to(device, dtype).requires_grad_();
  const at::Tensor weight = c.routing.weight.detach().to(device, sums).requires_grad_();
  const at::Tensor rows = dispatch_rows(x, to);
  const at::Tensor made = (rows * random(rows.sizes(), 7).to(device, dtype));
  const at::Tensor y = combine_rows(made, weight, to);
  y.backward(random(y.sizes(), 8).to(device, dtype).to(sums));
  std::vector<at::Tensor> all;
  for (const at::Tensor& t : {rows, y, x.grad(), weight.grad()}) all.push_back(t.detach().cpu());
  return all;
}

TEST_F(CudaDispatch, RowsGoThereAndBackAsOnTheCpu) {
  constexpr const char* kNames[] = {"rows", "y", "gradient of x", "gradient of the weights"};
  for (const Case& c : cases()) {
    const Dispatch to = dispatch(c.routing.expert, c.routing.slot, c.experts);
    int64_t most = 1;
    for (int64_t e = 0; e < c.experts; ++e) most = std::max(most, to.rows().count(e));
    for (const int64_t capacity : {int64_t{0}, most, most + 3}) {
      for (const int64_t width : {1, 33, 520}) {
        for (const auto& [dtype, tolerance] :
             {std::pair(at::kFloat, 2e-6), {at::kBFloat16, 1e-2}, {at::kDouble, 1e-14}}) {
          SCOPED_TRACE(std::string(c.what) + ", capacity " + std::to_string(capacity) + ", width " +
                       std::to_string(width) + ", " + c10::toString(dtype));
          const auto cpu = there_and_back(c, width, dtype, at::kCPU, capacity),
                     gpu = there_and_back(c, width, dtype, at::kCUDA, capacity);
          EXPECT_TRUE(at::equal(gpu[0], cpu[0]));
          // A weight's gradient sums `width` products, each rounded once: errors grow as the root
          // of their number.
          const double of_sums = tolerance * std::sqrt(static_cast<double>(width));
          for (size_t i = 1; i < gpu.size(); ++i)
            expect_close(gpu[i], cpu[i], i == 3 ? of_sums : tolerance, kNames[i]);
        }
      }
    }
  }
}

TEST_F(CudaDispatch, TheSameBitsTwice) {
  const Case c = cases().back();
  const auto once = there_and_back(c, 520, at::kFloat, at::kCUDA, 0),
             again = there_and_back(c, 520, at::kFloat, at::kCUDA, 0);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(at::equal(once[i], again[i])) << i;
}

TEST_F(CudaDispatch, TensorsElsewhereAreNamed) {
  const Case c = cases().back();
  const Dispatch to = dispatch(on_gpu(c.routing.expert), on_gpu(c.routing.slot), c.experts);
  EXPECT_THAT(user_error([&] { dispatch_rows(at::zeros({333, 4}), to); }),
              ::testing::HasSubstr("choices are on cuda"));
  EXPECT_THAT(user_error([&] { dispatch_rows(on_gpu(at::zeros({332, 4})), to); }),
              ::testing::HasSubstr("333 tokens"));
}

}  // namespace
}  // namespace dovetail::moe::cuda_dispatch_test
