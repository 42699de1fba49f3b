// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dovetail/moe/parallel_experts.h"
#include "dovetail/moe/routing.h"
#include "tests/comm/ranks.h"
#include "tests/moe/random.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::moe::cuda_parallel_test {
namespace {

using testing::expect_close;

constexpr int64_t kTokens = 37, kWidth = 64, kFfnWidth = 48, kExperts = 8;

class CudaParallel : public dovetail::testing::NeedsGpuKernels {};

struct Experts {
  ExpertWeights weights{.activation = "swiglu"};

  Experts(int64_t first, int64_t count, at::Device device, at::ScalarType dtype) {
    for (int64_t e = first; e < first + count; ++e) {
      weights.up.push_back(leaf({2 * kFfnWidth, kWidth}, e, device, dtype));
      weights.down.push_back(leaf({kWidth, kFfnWidth}, 100 + e, device, dtype));
    }
  }
  static at::Tensor leaf(at::IntArrayRef sizes, int64_t seed, at::Device device,
                         at::ScalarType dtype) {
    return (0.2 * random(sizes, static_cast<uint64_t>(seed)))
        .to(at::kBFloat16)
        .to(device, dtype)
        .requires_grad_();
  }
};

/// Every rank has the same tokens and choices, so one rank on the CPU is the reference for all. The
/// ranks share one GPU; Gloo moves their rows.
void expect_as_on_cpu(const ExpertLayout& layout, int ranks, at::ScalarType dtype, double tolerance,
                      std::optional<int64_t> capacity = std::nullopt) {
  const Routing routing =
      route(random({kTokens, kExperts}, 97).to(at::kFloat), {.k = 3, .drop = Drop::kNone});
  const auto sums = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto run = [&](const at::Tensor& x, at::Tensor weight, const auto& forward) {
    weight.requires_grad_();
    const at::Tensor y = forward(x, weight);
    y.backward(random(y.sizes(), 50).to(at::kBFloat16).to(y.options()));
    return std::vector<at::Tensor>{y.detach(), x.grad(), weight.grad()};
  };
  const Experts whole(0, kExperts, at::kCPU, dtype);
  const at::Tensor x = Experts::leaf({kTokens, kWidth}, 98, at::kCPU, dtype);
  const auto want =
      run(x, routing.weight.to(sums).clone(), [&](const at::Tensor& x, const at::Tensor& weight) {
        return feed_forward(x, weight, dispatch(routing.expert, routing.slot, kExperts),
                            whole.weights);
      });
  expect_all_succeed(ranks, [&](const std::shared_ptr<comm::Group>& group) {
    ExpertRanks spread{.placement = make_placement(kExperts, ranks, 1, kFfnWidth, false),
                       .group = group};
    if (layout.hierarchical) spread.nodes = comm::split_by_node(*group, 2);
    const int64_t first = spread.placement.first(group->rank()),
                  count = spread.placement.count(group->rank());
    const Experts own(first, count, at::kCUDA, dtype);
    const auto got = run(Experts::leaf({kTokens, kWidth}, 98, at::kCUDA, dtype),
                         routing.weight.to(at::kCUDA, sums).clone(),
                         [&](const at::Tensor& x, const at::Tensor& weight) {
                           return parallel_feed_forward(
                               x, weight, routing.expert.to(at::kCUDA), routing.slot.to(at::kCUDA),
                               {.weights = own.weights}, spread, layout, capacity);
                         });
    const std::string rank = "rank " + std::to_string(group->rank()) + " ";
    for (size_t i = 0; i < want.size(); ++i)
      expect_close(got[i].cpu(), want[i], tolerance, rank + std::to_string(i));
    for (int64_t e = 0; e < count; ++e) {
      const auto at = static_cast<size_t>(e), of_whole = static_cast<size_t>(first + e);
      expect_close(own.weights.up[at].grad().cpu(), ranks * whole.weights.up[of_whole].grad(),
                   tolerance, rank + "up");
      expect_close(own.weights.down[at].grad().cpu(), ranks * whole.weights.down[of_whole].grad(),
                   tolerance, rank + "down");
    }
  });
}

TEST_F(CudaParallel, EveryLayoutIsAsOneRankOnTheCpu) {
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kFloat, 2e-5}, {at::kBFloat16, 3e-2}, {at::kDouble, 1e-12}}) {
    expect_as_on_cpu({}, 2, dtype, tolerance);
    expect_as_on_cpu({.overlap = 3}, 2, dtype, tolerance);
    expect_as_on_cpu({.shards = 0}, 2, dtype, tolerance);
    expect_as_on_cpu({.shadowed = {1, 6}}, 2, dtype, tolerance);
    expect_as_on_cpu({.hierarchical = true}, 4, dtype, tolerance);
  }
}

TEST_F(CudaParallel, PaddedRowsAreAsOneRankOnTheCpu) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 2e-5}, {at::kBFloat16, 3e-2}}) {
    expect_as_on_cpu({}, 2, dtype, tolerance, kTokens);
    expect_as_on_cpu({.overlap = 2}, 2, dtype, tolerance, kTokens);
  }
}

}  // namespace
}  // namespace dovetail::moe::cuda_parallel_test
