#include "dovetail/mx/linear.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "dovetail/base/error.h"

namespace dovetail::mx::linear_test {
namespace {

TEST(Linear, MultipliesByTheTransposedWeightAndAddsTheBias) {
  for (const bool bias : {false, true}) {
    const auto layer = make_linear({.in = 7, .out = 5, .bias = bias, .name = "x"});
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : layer->parameters()) parameter.copy_(at::randn_like(parameter));
    }
    const auto x = at::randn({2, 3, 7});
    auto expected = at::einsum("bti,oi->bto", {x, layer->weight});
    if (bias) expected = expected + layer->bias;
    EXPECT_TRUE(at::allclose(layer->forward(x), expected, 1e-5, 1e-5));
    layer->forward(x).sum().backward();
    EXPECT_TRUE(at::allclose(layer->weight.grad(), x.sum(at::IntArrayRef({0, 1})).expand({5, 7}),
                             1e-5, 1e-5));
  }
}

TEST(Linear, RegistersItsParametersAndNothingElse) {
  const auto plain = make_linear({.in = 2, .out = 3, .name = "x"});
  EXPECT_EQ(plain->named_parameters().keys(), std::vector<std::string>{"weight"});
  EXPECT_FALSE(plain->bias.defined());
  const auto biased = make_linear({.in = 2, .out = 3, .bias = true, .name = "x"});
  EXPECT_EQ(biased->named_parameters().keys(), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(biased->weight.sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(biased->weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(biased->weight.requires_grad());
}

TEST(Linear, TakesNoMemoryOnTheMetaDevice) {
  const auto layer =
      make_linear({.in = 1 << 20, .out = 1 << 20, .name = "x", .device = c10::kMeta});
  EXPECT_TRUE(layer->weight.is_meta());
  EXPECT_EQ(layer->forward(at::empty({2, 1 << 20}, torch::device(c10::kMeta))).sizes(),
            (std::vector<int64_t>{2, 1 << 20}));
}

TEST(Linear, RefusesAnEmptyShape) {
  EXPECT_THROW(make_linear({.in = 0, .out = 3, .name = "x"}), InternalError);
}

}  // namespace
}  // namespace dovetail::mx::linear_test
