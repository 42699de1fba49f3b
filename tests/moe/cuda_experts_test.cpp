// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "dovetail/moe/cuda_kernels.h"
#include "dovetail/moe/experts.h"
#include "dovetail/moe/grouped_linear.h"
#include "dovetail/moe/parallel_experts.h"
#include "dovetail/moe/routing.h"
#include "dovetail/mx/feed_forward.h"
#include "tests/moe/random.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::moe::cuda_experts_test {
namespace {

using testing::expect_close;

class CudaExperts : public dovetail::testing::NeedsGpuKernels {};

struct Precision {
  at::ScalarType dtype;
  double tolerance;
};
constexpr Precision kPrecisions[] = {
    {at::kFloat, 2e-5}, {at::kBFloat16, 3e-2}, {at::kDouble, 1e-12}};

/// Returns a leaf of random values, scaled so that sums of `terms` products of them stay about 1.
at::Tensor leaf(at::IntArrayRef sizes, uint64_t seed, int64_t terms, at::Device device,
                at::ScalarType dtype) {
  const at::Tensor values = random(sizes, seed) / std::sqrt(static_cast<double>(terms));
  return values.to(at::kBFloat16).to(device, dtype).requires_grad_();
}

/// Returns y and the gradients of `leaves`, on the CPU.
std::vector<at::Tensor> results(const at::Tensor& y, const std::vector<at::Tensor>& leaves) {
  y.backward(random(y.sizes(), 50).to(at::kBFloat16).to(y.options()));
  std::vector<at::Tensor> all = {y.detach().cpu()};
  for (const at::Tensor& x : leaves)
    all.push_back((x.grad().defined() ? x.grad() : at::zeros_like(x)).cpu());
  return all;
}

void expect_all_close(const std::vector<at::Tensor>& gpu, const std::vector<at::Tensor>& cpu,
                      double tolerance) {
  for (size_t i = 0; i < cpu.size(); ++i)
    expect_close(gpu[i], cpu[i], tolerance, i == 0 ? "y" : "gradient " + std::to_string(i - 1));
}

double worst_error(const at::Tensor& x, const at::Tensor& exact) {
  return exact.numel() == 0
             ? 0
             : (x.to(at::kDouble) - exact.to(at::kDouble)).abs().max().item<double>();
}

/// bfloat16 rounds intermediate results, so that the error of one element is not meaningful. The
/// GPU's largest error against float64 may be twice the CPU's in bfloat16, plus a rounding of the
/// largest element.
void expect_as_exact_as_the_cpu(const std::vector<at::Tensor>& gpu,
                                const std::vector<at::Tensor>& cpu,
                                const std::vector<at::Tensor>& exact) {
  for (size_t i = 0; i < cpu.size(); ++i) {
    ASSERT_EQ(gpu[i].sizes(), exact[i].sizes());
    const double largest = exact[i].numel() == 0 ? 0 : exact[i].abs().max().item<double>();
    EXPECT_LE(worst_error(gpu[i], exact[i]), 2 * worst_error(cpu[i], exact[i]) + largest / 256)
        << "result " << i;
  }
}

TEST_F(CudaExperts, GroupedLinearIsThatOfTheCpu) {
  // Widths that are multiples of 16 bytes in bfloat16, and others. Some groups are empty; one group
  // has all rows.
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>(64, 48), {33, 7}, {1, 1}}) {
    for (const std::vector<int64_t>& counts :
         {std::vector<int64_t>{0, 0}, {0, 130, 0}, {5, 1, 64, 0, 33}, {17}}) {
      for (const bool bias : {false, true}) {
        for (const auto& [dtype, tolerance] : kPrecisions) {
          const auto run = [&](at::Device device) {
            const at::Tensor count = at::tensor(counts, at::kLong);
            const int64_t groups = std::ssize(counts);
            std::vector<at::Tensor> leaves = {
                leaf({count.sum().item<int64_t>(), in}, 1, 1, device, dtype),
                leaf({groups, out, in}, 2, in, device, dtype)};
            if (bias) leaves.push_back(leaf({groups, out}, 3, 1, device, dtype));
            return results(
                grouped_linear(leaves[0], leaves[1], count, bias ? leaves[2] : at::Tensor()),
                leaves);
          };
          SCOPED_TRACE(std::to_string(in) + " x " + std::to_string(out) + " " +
                       c10::toString(dtype));
          expect_all_close(run(at::kCUDA), run(at::kCPU), tolerance);
        }
      }
    }
  }
}

/// A layer's experts of width 24, or of all widths, with and without padding.
std::vector<at::Tensor> run_experts(const Routing& routing, const std::vector<int64_t>& widths,
                                    const std::string& activation, bool pad, at::ScalarType dtype,
                                    at::Device device) {
  constexpr int64_t kWidth = 40;
  const auto sums = dtype == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> leaves = {leaf({routing.expert.size(0), kWidth}, 1, 1, device, dtype),
                                    routing.weight.detach().to(device, sums).requires_grad_()};
  ExpertWeights experts = {.activation = activation};
  for (const int64_t width : widths) {
    const uint64_t seed = 10 * leaves.size();
    experts.up.push_back(
        leaf({mx::up_width(activation, width), kWidth}, seed, kWidth, device, dtype));
    experts.down.push_back(leaf({kWidth, width}, seed + 1, width, device, dtype));
    experts.up_bias.push_back(leaf({mx::up_width(activation, width)}, seed + 2, 1, device, dtype));
    experts.down_bias.push_back(leaf({kWidth}, seed + 3, 1, device, dtype));
    for (const auto* list : {&experts.up, &experts.down, &experts.up_bias, &experts.down_bias})
      leaves.push_back(list->back());
  }
  const Dispatch to =
      dispatch(routing.expert.to(device), routing.slot.to(device), std::ssize(widths));
  if (!pad) return results(feed_forward(leaves[0], leaves[1], to, experts), leaves);
  int64_t most = 1;
  for (int64_t e = 0; e < to.experts(); ++e) most = std::max(most, to.rows().count(e));
  const Dispatch full =
      padded_dispatch(routing.expert.to(device), routing.slot.to(device), std::ssize(widths), most);
  const at::Tensor y =
      padded_feed_forward(leaves[0], leaves[1], full, {.weights = experts, .modules = {}});
  return results(y, leaves);
}

TEST_F(CudaExperts, FeedForwardsAreThoseOfTheCpu) {
  at::Tensor one_expert = at::zeros({50, 4}, at::kDouble);
  one_expert.select(1, 2).fill_(9);
  const std::vector<Routing> routings = {
      route(random({0, 4}, 4), {.k = 2, .drop = Drop::kNone}),
      route(one_expert, {.k = 1, .drop = Drop::kNone}),
      route(random({203, 4}, 5), {.k = 2, .capacity_factor = 0.6})};
  for (const Routing& routing : routings) {
    for (const std::vector<int64_t>& widths :
         {std::vector<int64_t>{24, 24, 24, 24}, {8, 8, 31, 16}}) {
      for (const char* activation : {"swiglu", "gelu", "relu2"}) {
        for (const bool pad : {false, true}) {
          for (const auto& [dtype, tolerance] : kPrecisions) {
            SCOPED_TRACE(std::to_string(routing.expert.size(0)) + " tokens, " + activation +
                         (pad ? ", padded " : " ") + c10::toString(dtype));
            const auto run = [&](at::ScalarType with, at::Device device) {
              return run_experts(routing, widths, activation, pad, with, device);
            };
            if (dtype == at::kBFloat16) {
              expect_as_exact_as_the_cpu(run(dtype, at::kCUDA), run(dtype, at::kCPU),
                                         run(at::kDouble, at::kCPU));
            } else {  // squaring doubles the relative error of its input
              expect_all_close(run(dtype, at::kCUDA), run(dtype, at::kCPU),
                               std::string(activation) == "relu2" ? 2 * tolerance : tolerance);
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaExperts, TheSameBitsTwice) {
  const Routing routing = route(random({512, 4}, 6), {.k = 2, .drop = Drop::kNone});
  const auto once = run_experts(routing, {24, 24, 24, 24}, "gelu", false, at::kFloat, at::kCUDA),
             again = run_experts(routing, {24, 24, 24, 24}, "gelu", false, at::kFloat, at::kCUDA);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(at::equal(once[i], again[i])) << i;
}

}  // namespace
}  // namespace dovetail::moe::cuda_experts_test
