#include "dovetail/moe/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "dovetail/base/error.h"
#include "dovetail/moe/routing.h"
#include "dovetail/mx/feed_forward.h"
#include "tests/ops/testing.h"

namespace dovetail::moe::experts_test {
namespace {

using testing::at_every_simd_level;
using testing::expect_close;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::normal;
using testing::user_error;

constexpr int64_t kWidth = 40;

/// Tokens, their routing and experts.
struct Case {
  at::Tensor x, weight;
  Routing routing;
  ExpertWeights experts;

  Dispatch to() const { return dispatch(routing.expert, routing.slot, std::ssize(experts.up)); }
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all = {x, weight};
    for (const auto* list : {&experts.up, &experts.down, &experts.up_bias, &experts.down_bias})
      all.insert(all.end(), list->begin(), list->end());
    return all;
  }

  /// Returns the same numbers in another dtype, as leaves.
  Case in(at::ScalarType dtype, at::ScalarType weight_dtype) const {
    const auto leaf = [](const at::Tensor& t, at::ScalarType to) {
      return t.detach().to(to, false, true).requires_grad_();
    };
    Case out = *this;
    out.x = leaf(x, dtype);
    out.weight = leaf(weight, weight_dtype);
    for (auto* list :
         {&out.experts.up, &out.experts.down, &out.experts.up_bias, &out.experts.down_bias}) {
      for (at::Tensor& tensor : *list) tensor = leaf(tensor, dtype);
    }
    return out;
  }
};

/// Returns a case with experts of the given widths. No width is a multiple of an AVX-512 vector
/// (16 floats).
Case make(const std::string& activation, const std::vector<int64_t>& widths, bool bias,
          const RoutingSpec& spec, int64_t tokens = 203) {
  Case c{.x = normal({tokens, kWidth}, 1), .experts = {.activation = activation}};
  const auto experts = static_cast<int64_t>(widths.size());
  c.routing = route(normal({tokens, experts}, 2), spec);
  c.weight = c.routing.weight.detach();
  for (uint64_t e = 0; e < widths.size(); ++e) {
    const int64_t rows = mx::up_width(activation, widths[e]);
    c.experts.up.push_back(0.3 * normal({rows, kWidth}, 10 + e));
    c.experts.down.push_back(0.3 * normal({kWidth, widths[e]}, 30 + e));
    if (!bias) continue;
    c.experts.up_bias.push_back(normal({rows}, 50 + e));
    c.experts.down_bias.push_back(normal({kWidth}, 70 + e));
  }
  return c;
}

at::Tensor activate(const std::string& activation, const at::Tensor& h) {
  if (activation == "gelu") return at::gelu(h, "tanh");
  if (activation == "relu2") return at::relu(h).square();
  const auto halves = h.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

/// Reference by definition: choice by choice, token by token.
at::Tensor by_loops(const Case& c) {
  std::vector<at::Tensor> rows;
  const auto bias = [](const std::vector<at::Tensor>& inputs, size_t e) {
    return inputs.empty() ? at::Tensor() : inputs[e];
  };
  for (int64_t t = 0; t < c.x.size(0); ++t) {
    at::Tensor y = at::zeros({kWidth}, c.x.options());
    for (int64_t j = 0; j < c.weight.size(1); ++j) {
      if (c.routing.slot[t][j].item<int>() < 0) continue;
      const auto e = static_cast<size_t>(c.routing.expert[t][j].item<int>());
      const at::Tensor h = at::linear(c.x[t], c.experts.up[e], bias(c.experts.up_bias, e));
      const at::Tensor a = activate(c.experts.activation, h);
      y = y + c.weight[t][j] * at::linear(a, c.experts.down[e], bias(c.experts.down_bias, e));
    }
    rows.push_back(y);
  }
  return at::stack(rows);
}

std::vector<at::Tensor> gradients(const at::Tensor& y, const Case& c) {
  const at::Tensor dy = normal(y.sizes(), 99).to(y.scalar_type());
  auto found =
      torch::autograd::grad({y}, c.leaves(), {dy}, std::nullopt, false, /*allow_unused=*/true);
  const auto leaves = c.leaves();
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) found[i] = at::zeros_like(leaves[i]);
  }
  return found;
}

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
