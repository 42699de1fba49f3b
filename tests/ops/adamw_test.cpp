#include "dovetail/ops/adamw.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "tests/ops/testing.h"

namespace dovetail::ops::adamw_test {
namespace {

using testing::at_every_simd_level;
using testing::expect_close;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::normal;
using testing::user_error;

AdamWTensor fresh(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  const at::Tensor parameter = normal(sizes, seed, dtype);
  return {.parameter = parameter,
          .m = at::zeros_like(parameter),
          .v = at::zeros_like(parameter),
          .weight_decay = 0.1};
}

TEST(AdamW, MatchesTorchOptimOverSteps) {
  at_every_simd_level([] {
    for (const auto& [dtype, tolerance] :
         {std::pair(at::kFloat, 2e-6), std::pair(at::kDouble, 1e-13)}) {
      AdamWTensor ours = fresh({33, 31}, 1, dtype);
      const at::Tensor theirs = ours.parameter.clone().requires_grad_();
      torch::optim::AdamW peer(
          {theirs},
          torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
      for (int64_t step = 1; step <= 20; ++step) {
        ours.gradient = normal({33, 31}, 100 + static_cast<uint64_t>(step), dtype) * 4;
        theirs.mutable_grad() = ours.gradient * 0.25;
        peer.step();
        adamw_step({ours}, {.lr = 1e-2, .grad_scale = 0.25, .step = step});
      }
      expect_close(ours.parameter, theirs, tolerance);
    }
  });
}

TEST(AdamW, WritesTheComputeCopyRoundedToNearestEven) {
  at_every_simd_level([] {
    AdamWTensor t = fresh({1027}, 1);
    t.gradient = normal({1027}, 2, at::kBFloat16);
    t.compute_copy = at::zeros({1027}, at::kBFloat16);
    adamw_step({t}, {});
    expect_same_bits(t.compute_copy, t.parameter.to(at::kBFloat16));
    // Ties: lr 0 leaves the parameter, whose low half is exactly 0x8000.
    AdamWTensor ties = fresh({2}, 1);
    ties.parameter.copy_(at::tensor({1.00390625f, 1.01171875f}));
    ties.gradient = at::zeros({2});
    ties.compute_copy = at::zeros({2}, at::kBFloat16);
    adamw_step({ties}, {.lr = 0});
    EXPECT_EQ(ties.compute_copy[0].item<float>(), 1.0f);
    EXPECT_EQ(ties.compute_copy[1].item<float>(), 1.015625f);
  });
}

TEST(AdamW, TellsAutogradThatTheWeightsChanged) {
  AdamWTensor t = fresh({64}, 1);
  t.gradient = normal({64}, 2);
  t.compute_copy = at::zeros({64}, at::kBFloat16);
  const auto before = t.parameter._version(), copy_before = t.compute_copy._version();
  adamw_step({t}, {});
  EXPECT_GT(t.parameter._version(), before);
  EXPECT_GT(t.compute_copy._version(), copy_before);
}

TEST(AdamW, TakesManyTensorsOfAnySizeAndGradientsOfAnyStride) {
  const auto run = [](int threads) {
    const testing::Threads count(threads);
    std::vector<AdamWTensor> tensors;
    for (const int64_t size : {1, 31, 0, 40000, 17}) {
      tensors.push_back(fresh({size, 2}, static_cast<uint64_t>(size)));
      tensors.back().gradient = normal({2, size}, 9).t();
    }
    adamw_step(tensors, {});
    std::vector<at::Tensor> parameters;
    for (const AdamWTensor& t : tensors) parameters.push_back(t.parameter.flatten());
    return at::cat(parameters);
  };
  const at::Tensor serial = run(1);
  expect_same_bits(run(3), serial);
  EXPECT_TRUE(serial.isfinite().all().item<bool>());
}

TEST(AdamW, AgreesWithItselfSwitchedOff) {
  AdamWTensor a = fresh({513}, 1), b = fresh({513}, 1);
  a.gradient = b.gradient = normal({513}, 2);
  adamw_step({a}, {.step = 3});
  set_disabled_kernels("adamw");
  adamw_step({b}, {.step = 3});
  set_disabled_kernels("");
  expect_close(a.parameter, b.parameter, 1e-6);
  expect_close(a.v, b.v, 1e-6);
}

TEST(AdamW, RefusesMismatchedTensors) {
  AdamWTensor t = fresh({4}, 1);
  EXPECT_THAT(user_error([&] { adamw_step({t}, {}); }), HasSubstr("gradient 0"));
  t.gradient = at::zeros({5});
  EXPECT_THAT(user_error([&] { adamw_step({t}, {}); }), HasSubstr("[5]"));
  t.gradient = at::zeros({4}, at::kHalf);
  EXPECT_THAT(user_error([&] { adamw_step({t}, {}); }), HasSubstr("Half"));
  t.gradient = at::zeros({4});
  t.compute_copy = at::zeros({4});
  EXPECT_THAT(user_error([&] { adamw_step({t}, {}); }), HasSubstr("bfloat16"));
  t.compute_copy = at::Tensor();
  EXPECT_THAT(user_error([&] { adamw_step({t}, {.step = 0}); }), HasSubstr("step"));
}

TEST(SumOfSquares, MatchesFloat64AndKeepsNotANumber) {
  at_every_simd_level([] {
    const std::vector<at::Tensor> tensors = {normal({70001}, 1), normal({33, 31}, 2).t(),
                                             normal({5}, 3, at::kDouble),
                                             normal({1003}, 4, at::kBFloat16), at::zeros({0})};
    double expected = 0;
    for (const at::Tensor& t : tensors) expected += t.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(sum_of_squares(tensors), expected, 1e-12 * expected);
    EXPECT_TRUE(std::isnan(sum_of_squares({at::full({3}, NAN)})));
    EXPECT_TRUE(std::isinf(sum_of_squares({at::full({3}, INFINITY)})));
  });
  EXPECT_EQ(sum_of_squares({}), 0.0);
}

}  // namespace
}  // namespace dovetail::ops::adamw_test
