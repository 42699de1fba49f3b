// Experts in FP8 whose numbers of rows stay on the device. The device here is the CPU, with a
// reference of the product. On a GPU: cuda_device_float8_test.cpp.
#include "dovetail/moe/device_float8.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "dovetail/moe/layer.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/mx/float8.h"
#include "tests/moe/float8_case.h"

namespace dovetail::moe::device_float8_test {
namespace {

using expert_case::Case;
using expert_case::gradients;
using float8_case::e4m3_recipe;
using float8_case::Linears;
using float8_case::make_linears;
using ::testing::HasSubstr;

/// Returns the numbers of x quantized alone, float64.
at::Tensor quantized(const at::Tensor& x, const mx::OperandRecipe& how) {
  return mx::dequantize(mx::quantize_float8(x, {.power_of_two = !how.float32_scales}).tensor)
      .to(at::kDouble);
}

/// Differs by a rounding to bfloat16 and the order of float32 sums.
void expect_rounded(const at::Tensor& found, const at::Tensor& exact, const std::string& name) {
  EXPECT_EQ(found.scalar_type(), at::kBFloat16) << name;
  const double largest = exact.abs().max().item<double>();
  const at::Tensor bound = exact.abs() / 256 + 1e-5 * largest;
  EXPECT_TRUE((found.to(at::kDouble) - exact).abs().le(bound).all().item<bool>()) << name;
}

/// Each expert's rows, weight and gradient are quantized alone, and multiplied in float64.
void expect_definition(const Linears& c, const mx::LinearRecipe& recipe) {
  const std::vector<at::Tensor> found = c.run(recipe);
  const auto experts = std::ssize(c.weight);
  const int64_t choices = c.rows.places_of_token.numel();
  int64_t first = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t end = c.rows.ends[e].item<int64_t>();
    const int64_t rows = c.rows.choice.slice(0, first, end).ne(choices).sum().item<int64_t>();
    const auto of_expert = [&](const at::Tensor& t) { return t.detach().narrow(0, first, rows); };
    const auto at = static_cast<size_t>(e);
    const at::Tensor dw = found[2 + at];
    if (rows == 0) {
      EXPECT_EQ(dw.abs().max().item<float>(), 0) << "weight " << e;
    } else {
      const at::Tensor x = quantized(of_expert(c.x), recipe.activation),
                       w = quantized(c.weight[at], recipe.weight),
                       dy = quantized(of_expert(c.dy), recipe.gradient);
      at::Tensor y = x.mm(w.t());
      // The bias is added to rounded numbers.
      if (!c.bias.empty()) y = y.to(at::kBFloat16).to(at::kDouble) + c.bias[at].to(at::kDouble);
      const at::Tensor y_found = of_expert(found[0]);
      if (c.bias.empty()) expect_rounded(y_found, y, fmt::format("y of {}", e));
      EXPECT_LE((y_found.to(at::kDouble) - y).abs().max().item<double>(),
                y.abs().max().item<double>() / 64);
      expect_rounded(of_expert(found[1]), dy.mm(w), fmt::format("dx of {}", e));
      expect_rounded(dw, dy.t().mm(x), fmt::format("dw of {}", e));
      if (!c.bias.empty())
        expect_rounded(found[2 + static_cast<size_t>(experts) + at],
                       of_expert(c.dy).to(at::kDouble).sum(0), fmt::format("db of {}", e));
    }
    first = end;
  }
}

TEST(DeviceFloat8, ProductsAreTheirDefinitionExpertByExpert) {
  for (const bool float32_scales : {true, false}) {
    for (const bool bias : {false, true}) {
      SCOPED_TRACE(fmt::format("float32 scales {}, bias {}", float32_scales, bias));
      const mx::LinearRecipe recipe = e4m3_recipe(float32_scales);
      expect_definition(make_linears({5, 0, 37, 1, 16, 15}, 48, 80, bias), recipe);
      expect_definition(make_linears({0, 0, 3}, 16, 16, bias), recipe);
      expect_definition(make_linears({33}, 32, 16, bias), recipe);
    }
  }
}

/// An expert with an infinity has a result that is not a number. Others keep theirs.
TEST(DeviceFloat8, NumbersThatAreNotFiniteStayInTheirExpert) {
  Linears c = make_linears({7, 20}, 32, 16, false);
  const auto sound = c.run(e4m3_recipe());
  c.x.detach()[3][4] = -std::numeric_limits<double>::infinity();
  const auto found = c.run(e4m3_recipe());
  EXPECT_TRUE(found[0].narrow(0, 0, 7).isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(found[0].narrow(0, 16, 20), sound[0].narrow(0, 16, 20)));
  EXPECT_TRUE(found[2].isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(found[3], sound[3]));
}

TEST(DeviceRows, AreMultiples) {
  const Linears c = make_linears({5, 0, 37, 16, 15}, 16, 16, false);
  EXPECT_EQ(c.rows.places(), 80 + 5 * 16);
  const at::Tensor wanted = at::tensor({16, 32, 80, 112, 160}, at::kInt);
  EXPECT_TRUE(at::equal(c.rows.ends, wanted)) << c.rows.ends;
  const DeviceRows padded = device_rows(at::zeros({3, 1}, at::kInt),
                                        at::arange(3, at::kInt).view({3, 1}), 2, 5, {}, false, 16);
  EXPECT_TRUE(at::equal(padded.ends, at::tensor({16, 32}, at::kInt)));
}

/// Returns a case whose widths are multiples of 16, in bfloat16.
Case wide_case(const char* activation, bool bias, const RoutingSpec& spec) {
  Case c{.x = testing::normal({77, 48}, 1), .experts = {.activation = activation}};
  c.routing = route(testing::normal({77, 5}, 2), spec);
  c.weight = c.routing.weight.detach();
  for (uint64_t e = 0; e < 5; ++e) {
    const int64_t rows = mx::up_width(activation, 32);
    c.experts.up.push_back(0.3 * testing::normal({rows, 48}, 10 + e));
    c.experts.down.push_back(0.3 * testing::normal({48, 32}, 30 + e));
    if (!bias) continue;
    c.experts.up_bias.push_back(testing::normal({rows}, 50 + e));
    c.experts.down_bias.push_back(testing::normal({48}, 70 + e));
  }
  return c.in(at::kBFloat16, at::kFloat);
}

/// Returns the result of the experts one after another, each a pair of quantized Linears.
at::Tensor one_by_one(const Case& c, const mx::LinearRecipe& recipe) {
  const auto activation = mx::activation_operation(c.experts.activation);
  return apply_experts(c.x, c.weight, c.to(), [&](int64_t expert, const at::Tensor& rows) {
    if (rows.size(0) == 0) return rows;
    const auto e = static_cast<size_t>(expert);
    const auto linear = [&](const at::Tensor& x, const auto& weights, const auto& biases) {
      // The bias is added to rounded numbers.
      const at::Tensor y =
          std::make_shared<mx::QuantizedLinear>(recipe, "expert")->forward(x, weights[e]);
      return biases.empty() ? y : y + biases[e];
    };
    const at::Tensor h = linear(rows, c.experts.up, c.experts.up_bias);
    return linear(activation->apply(h), c.experts.down, c.experts.down_bias);
  });
}

/// Returns |a - b| / |b|.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor exact = b.to(at::kDouble);
  return (a.to(at::kDouble) - exact).norm().item<double>() / exact.norm().item<double>();
}

/// y agrees with quantized Linears one by one. Gradients of a choice are rounded in another order,
/// and FP8 makes small differences large. So gradients may have 5/4 of the error of Linears one by
/// one against experts in float64, plus a rounding.
void expect_one_by_one(const Case& c) {
  const Case wide = c.in(at::kDouble, at::kDouble);
  const at::Tensor exact = feed_forward(wide.x, wide.weight, wide.to(), wide.experts),
                   alone = one_by_one(c, e4m3_recipe());
  const auto exact_gradients = gradients(exact, wide), of_alone = gradients(alone, c);
  for (const int64_t capacity : {int64_t{0}, c.routing.capacity}) {
    const DeviceRows rows =
        device_rows(c.routing.expert, c.routing.slot, 5, capacity, {}, true, kFloat8Multiple);
    const at::Tensor y = feed_forward(c.x, c.weight, rows, c.experts, e4m3_recipe());
    EXPECT_LT(distance(y, alone), 1e-2);
    const auto found = gradients(y, c);
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_LE(distance(found[i], exact_gradients[i]),
                1.25 * distance(of_alone[i], exact_gradients[i]) + 1.0 / 256)
          << "gradient " << i;
  }
}

TEST(DeviceFloat8, ExpertsAreQuantizedLinearsOneByOne) {
  for (const char* activation : {"swiglu", "gelu"}) {
    for (const bool bias : {false, true}) {
      for (const RoutingSpec& spec : {RoutingSpec{.k = 2, .drop = Drop::kNone},
                                      RoutingSpec{.k = 2, .capacity_factor = 0.6}}) {
        SCOPED_TRACE(
            fmt::format("{}, bias {}, capacity {}", activation, bias, spec.capacity_factor));
        expect_one_by_one(wide_case(activation, bias, spec));
      }
    }
  }
}

TEST(DeviceFloat8, SayWhyTheCardsProductIsNotTheirs) {
  const ExpertWeights experts = wide_case("gelu", false, {.k = 1, .drop = Drop::kNone}).experts;
  const auto reason = [&](auto change, int major = 9) {
    mx::LinearRecipe recipe = e4m3_recipe();
    change(recipe);
    return scaled_grouped_mm_obstacle(experts, recipe, major);
  };
  const auto as_it_is = [](auto&) {};
  EXPECT_EQ(reason(as_it_is), "");
  EXPECT_THAT(reason(as_it_is, 8), HasSubstr("the GPU has 8"));
  EXPECT_THAT(reason(as_it_is, 10), HasSubstr("the GPU has 10"));
  EXPECT_THAT(reason([](auto& r) { r.gradient.format = mx::Format::kE5M2; }),
              HasSubstr("quantizes the gradient to e5m2"));
  EXPECT_THAT(reason([](auto& r) { r.activation.blocks = mx::Blocks::k1x128; }),
              HasSubstr("the activation in blocks of 1x128"));
  EXPECT_THAT(reason([](auto& r) { r.weight = {}; }), HasSubstr("does not quantize the weight"));
  EXPECT_THAT(reason([](auto& r) { r.weight.history = 4; }), HasSubstr("earlier steps"));
  const Case odd = expert_case::make("gelu", {24, 24}, false, {.k = 1, .drop = Drop::kNone}, 4);
  EXPECT_THAT(
      scaled_grouped_mm_obstacle(odd.in(at::kBFloat16, at::kFloat).experts, e4m3_recipe(), 9),
      HasSubstr("widths 40 and 24 are not both multiples of 16"));
  EXPECT_THAT(scaled_grouped_mm_obstacle(odd.in(at::kFloat, at::kFloat).experts, e4m3_recipe(), 9),
              HasSubstr("in Float"));
  EXPECT_THAT(float8_rows_obstacle(experts, e4m3_recipe()), HasSubstr("not on a GPU"));
}

/// A layer on the meta device, with a recipe for its Linears of the names that hold `part`.
std::shared_ptr<Layer> meta_layer(const mx::LinearRecipe& recipe, const std::string& part = "") {
  auto layer = std::make_shared<Layer>(
      resolve({.experts = 4}, 16),
      Layer::Options{
          .width = 32, .activation = "gelu", .name = "blocks.0.moe", .device = at::kMeta});
  for (auto& parameter : layer->parameters()) parameter.set_data(parameter.to(at::kBFloat16));
  for (const auto& linear : mx::quantizable_linears(*layer))
    if (linear->options().name.find(part) != std::string::npos) linear->set_recipe(recipe);
  return layer;
}

TEST(DeviceFloat8, OfALayerCanBePartOfAGraph) {
  const auto layer = meta_layer(e4m3_recipe());
  EXPECT_EQ(layer->graph_obstacle(), "");
  layer->share_expert_storage();
  const auto parameters = layer->named_parameters();
  EXPECT_TRUE(parameters["experts.0.up.weight"].is_alias_of(parameters["experts.3.up.weight"]));
  EXPECT_THAT(describe_products({{"a", layer}}), HasSubstr("in FP8, `torch._scaled_grouped_mm`"));
  EXPECT_THAT(layer->recorded_obstacle(at::kBFloat16, at::kCUDA), HasSubstr("quantized experts"));
  EXPECT_THAT(meta_layer(e4m3_recipe(), "up")->graph_obstacle(), HasSubstr("different recipes"));
  const auto& recipes = mx::built_in_recipes();
  EXPECT_THAT(meta_layer(mx::find_recipe(recipes, "fp8_tensor").linear)->graph_obstacle(),
              HasSubstr("gradient to e5m2"));
  EXPECT_THAT(describe_products({{"a", meta_layer(mx::find_recipe(recipes, "mxfp8").linear)}}),
              HasSubstr("in a, their recipe quantizes the weight in blocks of 1x32"));
}

}  // namespace
}  // namespace dovetail::moe::device_float8_test
