#include "dovetail/moe/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "tests/moe/expert_case.h"

namespace dovetail::moe::experts_test {
namespace {

using expert_case::by_loops;
using expert_case::Case;
using expert_case::gradients;
using expert_case::kWidth;
using expert_case::make;
using testing::at_every_simd_level;
using testing::expect_close;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::user_error;

void expect_definition(const Case& of, at::ScalarType dtype, double tolerance) {
  const Case c = of.in(dtype, at::kFloat), exact = c.in(at::kDouble, at::kDouble);
  const at::Tensor y = feed_forward(c.x, c.weight, c.to(), c.experts), expected = by_loops(exact);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  expect_close(y, expected, tolerance);
  const auto found = gradients(y, c), wanted = gradients(expected, exact);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), c.leaves()[i].scalar_type());
    const double scale = std::max(1.0, wanted[i].abs().max().item<double>());
    expect_close(found[i].to(at::kDouble) / scale, wanted[i] / scale, tolerance,
                 fmt::format("gradient {}", i));
  }
}

TEST(Experts, AreTheirDefinitionTokenByToken) {
  at_every_simd_level([] {
    const RoutingSpec all{.k = 2, .drop = Drop::kNone};
    for (const char* activation : {"swiglu", "gelu", "relu2"}) {
      for (const bool bias : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, bias {}", activation, bias));
        expect_definition(make(activation, {21, 21, 21, 21, 21}, bias, all), at::kFloat, 2e-5);
      }
    }
    // Experts with different widths, in runs. Some experts get no tokens; some choices are dropped.
    expect_definition(make("swiglu", {8, 8, 50, 3, 3, 70}, true, all), at::kFloat, 2e-5);
    expect_definition(
        make("gelu", std::vector<int64_t>(40, 9), true, {.k = 1, .drop = Drop::kNone}, 11),
        at::kFloat, 2e-5);
    expect_definition(make("swiglu", {21, 21, 21}, true, {.k = 2, .capacity_factor = 0.4}),
                      at::kFloat, 2e-5);
    expect_definition(make("swiglu", {33, 33, 20}, true, all), at::kBFloat16, 6e-2);
  });
}

TEST(Experts, HaveTheSameBitsForAnyNumberOfThreads) {
  const Case c =
      make("gelu", std::vector<int64_t>(7, 300), true, {.k = 3, .drop = Drop::kNone}, 1000)
          .in(at::kFloat, at::kFloat);
  const auto run = [&c](int threads) {
    const testing::Threads count(threads);
    const at::Tensor y = feed_forward(c.x, c.weight, c.to(), c.experts);
    auto all = gradients(y, c);
    all.push_back(y);
    return all;
  };
  const auto one = run(1);
  for (const int threads : {2, 5}) {
    const auto many = run(threads);
    for (size_t i = 0; i < one.size(); ++i) expect_same_bits(many[i], one[i]);
  }
}

TEST(Experts, TakeNoTokens) {
  const Case c =
      make("swiglu", {4, 5}, true, {.k = 1, .drop = Drop::kNone}, 0).in(at::kFloat, at::kFloat);
  const at::Tensor y = feed_forward(c.x, c.weight, c.to(), c.experts);
  EXPECT_EQ(y.sizes(), c.x.sizes());
  for (const at::Tensor& gradient : gradients(y, c))
    EXPECT_EQ(gradient.abs().sum().item<float>(), 0);
}

TEST(Experts, SayWhichTensorDoesNotFit) {
  const Case good = make("swiglu", {4, 5}, false, {.k = 1, .drop = Drop::kNone});
  const auto message = [&good](auto change) {
    Case c = good;
    change(c);
    return user_error([&] {
      feed_forward(c.x, c.weight, dispatch(c.routing.expert, c.routing.slot, 2), c.experts);
    });
  };
  EXPECT_THAT(message([](Case& c) { c.experts.up[1] = at::zeros({5, kWidth}); }),
              HasSubstr("up of expert 1 must be [10, 40], but is [5, 40]"));
  EXPECT_THAT(message([](Case& c) { c.experts.down[0] = at::zeros({3, 4}); }),
              HasSubstr("down of expert 0 must be"));
  EXPECT_THAT(message([](Case& c) { c.experts.up[0] = c.experts.up[0].to(at::kBFloat16); }),
              HasSubstr("one dtype"));
  EXPECT_THAT(message([](Case& c) { c.weight = c.weight.to(at::kDouble); }),
              HasSubstr("weight must be Float"));
  EXPECT_THAT(message([](Case& c) { c.experts.up_bias.resize(1); }), HasSubstr("biases"));
  EXPECT_THAT(message([](Case& c) { c.experts.up.pop_back(); }), HasSubstr("matrices"));
}

}  // namespace
}  // namespace dovetail::moe::experts_test
