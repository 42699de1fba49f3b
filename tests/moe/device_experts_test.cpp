// Experts whose numbers of rows stay on the device. The device here is the CPU, with the operators
// of a GPU (cuda_device_experts_test.cpp).
#include "dovetail/moe/device_experts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "dovetail/moe/layer.h"
#include "dovetail/ops/simd_level.h"
#include "tests/moe/expert_case.h"

namespace dovetail::moe::device_experts_test {
namespace {

using expert_case::by_loops;
using expert_case::Case;
using expert_case::gradients;
using expert_case::kWidth;
using expert_case::make;
using testing::expect_close;
using ::testing::HasSubstr;

/// Returns the rows of the case's choices. Capacity 0: dropless.
DeviceRows rows_of(const Case& c, int64_t capacity) {
  return device_rows(c.routing.expert, c.routing.slot, std::ssize(c.experts.up), capacity);
}

/// Returns y and the gradients of the case's leaves.
std::vector<at::Tensor> with_gradients(const at::Tensor& y, const Case& c) {
  std::vector<at::Tensor> all = {y};
  for (const at::Tensor& gradient : gradients(y, c)) all.push_back(gradient);
  return all;
}

double error(const at::Tensor& x, const at::Tensor& exact) {
  return (x.to(at::kDouble) - exact).abs().max().item<double>();
}

/// In float32 the results are the definition's in float64, to rounding. In bfloat16 they may have
/// twice the error of the experts on the CPU, plus a rounding of the largest element.
void expect_definition(const Case& of, int64_t capacity) {
  const Case exact = of.in(at::kBFloat16, at::kFloat).in(at::kDouble, at::kDouble),
             wide = exact.in(at::kFloat, at::kFloat), narrow = exact.in(at::kBFloat16, at::kFloat);
  const auto wanted = with_gradients(by_loops(exact), exact);
  const auto run = [&](const Case& c) {
    return with_gradients(feed_forward(c.x, c.weight, rows_of(c, capacity), c.experts), c);
  };
  const auto found = run(wide), rounded = run(narrow);
  const auto on_cpu =
      with_gradients(feed_forward(narrow.x, narrow.weight, narrow.to(), narrow.experts), narrow);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string name = i == 0 ? "y" : fmt::format("gradient {}", i - 1);
    const double largest = std::max(1.0, wanted[i].abs().max().item<double>());
    expect_close(found[i].to(at::kDouble) / largest, wanted[i] / largest, 2e-5, name);
    EXPECT_EQ(rounded[i].scalar_type(), on_cpu[i].scalar_type()) << name;
    EXPECT_LE(error(rounded[i], wanted[i]), 2 * error(on_cpu[i], wanted[i]) + largest / 256)
        << name;
  }
}

TEST(DeviceExperts, AreTheirDefinitionTokenByToken) {
  for (const char* activation : {"swiglu", "gelu", "relu2"}) {
    for (const int64_t k : {1, 2, 8}) {
      for (const bool bias : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, k {}, bias {}", activation, k, bias));
        const RoutingSpec spec{.k = k, .drop = Drop::kNone};
        expect_definition(make(activation, std::vector<int64_t>(9, 24), bias, spec, 61), 0);
      }
    }
  }
}

/// Loads from no token to all of them.
TEST(DeviceExperts, HaveAnyLoad) {
  Case c = make("swiglu", std::vector<int64_t>(6, 16), true, {.k = 1, .drop = Drop::kNone}, 40);
  at::Tensor logits = at::zeros({40, 6}, at::kDouble);
  logits.select(1, 3).fill_(9);
  logits[7][5] = 20;
  c.routing = route(logits, {.k = 1, .drop = Drop::kNone});
  expect_definition(c, 0);
  c = make("gelu", std::vector<int64_t>(40, 8), true, {.k = 1, .drop = Drop::kNone}, 11);
  expect_definition(c, 0);
}

TEST(DeviceExperts, HaveCapacities) {
  const RoutingSpec spec{.k = 2, .capacity_factor = 0.6};
  for (const bool bias : {false, true}) {
    const Case c = make("swiglu", std::vector<int64_t>(4, 16), bias, spec, 50);
    ASSERT_GT((c.routing.slot < 0).sum().item<int64_t>(), 0);
    expect_definition(c, 0);
    expect_definition(c, c.routing.capacity);
    expect_definition(c, c.routing.capacity + 3);
  }
}

/// A draw may leave slots of an expert empty.
TEST(DeviceExperts, HaveSlotsWithGaps) {
  Case c = make("relu2", std::vector<int64_t>(4, 16), true, {.k = 2, .drop = Drop::kNone}, 50);
  c.routing = route(testing::normal({50, 4}, 2), {.k = 2, .drop = Drop::kNone},
                    {.draw = testing::normal({50}, 3).abs()});
  ASSERT_GT((c.routing.slot < 0).sum().item<int64_t>(), 0);
  c.weight = c.routing.weight.detach();
  expect_definition(c, 0);
}

TEST(DeviceExperts, TakeNoTokens) {
  const Case c =
      make("swiglu", {16, 16}, true, {.k = 1, .drop = Drop::kNone}, 0).in(at::kFloat, at::kFloat);
  const at::Tensor y = feed_forward(c.x, c.weight, rows_of(c, 0), c.experts);
  EXPECT_EQ(y.sizes(), c.x.sizes());
  for (const at::Tensor& gradient : gradients(y, c))
    EXPECT_EQ(gradient.abs().sum().item<float>(), 0);
}

/// A Dispatch has the same rows, without the spare place behind the rows of each expert.
TEST(DeviceRows, AreThoseOfADispatch) {
  const Case c = make("gelu", std::vector<int64_t>(5, 8), false, {.k = 2, .capacity_factor = 0.7});
  const Dispatch to = c.to();
  const int64_t choices = c.routing.expert.numel();
  for (const int64_t capacity : {int64_t{0}, c.routing.capacity}) {
    const DeviceRows rows = rows_of(c, capacity);
    EXPECT_EQ(rows.places(), capacity > 0 ? 5 * capacity : choices + 5);
    int64_t first = 0;
    for (int64_t e = 0; e < 5; ++e) {
      const int64_t count = to.rows().count(e), end = rows.ends[e].item<int64_t>();
      EXPECT_EQ(end, capacity > 0 ? first + capacity : first + count + 1);
      EXPECT_TRUE(
          at::equal(rows.choice.narrow(0, first, count), to.rows().of_expert(to.choice(), e)));
      EXPECT_TRUE(
          at::equal(rows.token.narrow(0, first, count), to.rows().of_expert(to.token(), e)));
      EXPECT_TRUE((rows.choice.slice(0, first + count, end) == choices).all().item<bool>());
      first = end;
    }
    const at::Tensor x = testing::normal({203, kWidth}, 4).to(at::kFloat);
    const at::Tensor expected =
        at::cat({x, at::zeros({1, kWidth})}).index_select(0, rows.choice.div(2, "floor"));
    EXPECT_TRUE(at::equal(take_rows(x, rows), expected));
  }
}

TEST(DeviceRows, AChoiceWithoutAPlaceIsDropped) {
  const Case c = make("gelu", {8, 8}, false, {.k = 1, .drop = Drop::kNone}, 20);
  const DeviceRows rows = rows_of(c, 3);
  EXPECT_EQ(rows.places_of_token.ge(0).sum().item<int64_t>(), 6);
  EXPECT_LT(rows.places_of_token.max().item<int64_t>(), rows.places());
}

TEST(DeviceRows, NameWhatDoesNotFit) {
  const Case c = make("gelu", {8, 8}, false, {.k = 1, .drop = Drop::kNone}, 20);
  const DeviceRows rows = rows_of(c, 0);
  EXPECT_THAT(testing::user_error([&] { take_rows(at::zeros({19, 4}), rows); }),
              HasSubstr("x must be (20, C)"));
  EXPECT_THAT(testing::user_error(
                  [&] { combine_rows(at::zeros({22, 4}), at::zeros({20, 1}, at::kDouble), rows); }),
              HasSubstr("weight float32"));
}

TEST(ExpertStorage, IsReadWithoutACopy) {
  const at::Tensor all = at::rand({3, 4, 5});
  EXPECT_EQ(stacked(all.unbind()).const_data_ptr(), all.const_data_ptr());
  std::vector<at::Tensor> apart;
  for (const at::Tensor& one : all.unbind()) apart.push_back(one.clone().requires_grad_());
  EXPECT_TRUE(at::equal(stacked(apart), all));
  const at::Tensor kept = apart[1];
  share_storage(apart);
  EXPECT_TRUE(kept.is_same(apart[1]) && kept.is_leaf() && kept.requires_grad());
  EXPECT_EQ(stacked(apart).const_data_ptr(), apart[0].const_data_ptr());
  EXPECT_TRUE(at::equal(stacked(apart), all));
  {
    const at::NoGradGuard no_grad;
    apart[2].fill_(7);  // as an optimizer updates a parameter
  }
  EXPECT_TRUE(at::equal(stacked(apart)[2], at::full({4, 5}, 7.0f)));
  for (const std::vector<at::Tensor>& others :
       {std::vector{all[1], all[0]}, {all[0], all[2]}, {all[0].t(), all[1].t()}})
    EXPECT_TRUE(at::equal(stacked(others), at::stack(others)));
}

/// The gradients of the weights are parts of one tensor, which nothing copies.
TEST(DeviceExperts, LeaveGradientsInOneTensor) {
  const Case c = make("gelu", {16, 16, 16}, false, {.k = 2, .drop = Drop::kNone}, 20)
                     .in(at::kBFloat16, at::kFloat);
  feed_forward(c.x, c.weight, rows_of(c, 0), c.experts).sum().backward();
  for (const auto* list : {&c.experts.up, &c.experts.down}) {
    const at::Tensor& first = (*list)[0].grad();
    for (const at::Tensor& weight : *list) {
      EXPECT_TRUE(weight.grad().is_alias_of(first));
      EXPECT_TRUE(weight.grad().is_contiguous());
    }
  }
}

TEST(DeviceExperts, SayWhyTheirSizesGoToTheHost) {
  const auto experts = [](const std::vector<int64_t>& widths, at::ScalarType dtype) {
    return make("gelu", widths, false, {.k = 1, .drop = Drop::kNone}, 4)
        .in(dtype, at::kFloat)
        .experts;
  };
  EXPECT_EQ(grouped_mm_obstacle(experts({8, 8}, at::kBFloat16), 9), "");
  EXPECT_EQ(grouped_mm_obstacle(experts({8, 8}, at::kBFloat16), 10), "");
  EXPECT_THAT(grouped_mm_obstacle(experts({8, 8}, at::kBFloat16), 8), HasSubstr("the GPU has 8"));
  EXPECT_THAT(grouped_mm_obstacle(experts({8, 8}, at::kFloat), 9), HasSubstr("in Float"));
  EXPECT_THAT(grouped_mm_obstacle(experts({8, 16}, at::kBFloat16), 9), HasSubstr("differ"));
  EXPECT_THAT(grouped_mm_obstacle(experts({12, 12}, at::kBFloat16), 9),
              HasSubstr("widths 40 and 12 are not both multiples of 8"));
  EXPECT_THAT(grouped_mm_obstacle(experts(std::vector<int64_t>(1024, 8), at::kBFloat16), 9),
              HasSubstr("takes 1023 experts"));
  EXPECT_THAT(device_rows_obstacle(experts({8, 8}, at::kBFloat16)), HasSubstr("not on a GPU"));
  for (const char* kernel : {"experts", "grouped_mm"}) {
    ops::set_disabled_kernels(kernel);
    EXPECT_THAT(grouped_mm_obstacle(experts({8, 8}, at::kBFloat16), 9),
                HasSubstr(fmt::format("`{}` is switched off", kernel)));
    ops::set_disabled_kernels("");
  }
}

/// A layer that routes on a GPU. On the meta device it has shapes alone.
std::shared_ptr<Layer> meta_layer(const Config& config, at::ScalarType dtype) {
  auto layer = std::make_shared<Layer>(
      resolve(config, 16),
      Layer::Options{
          .width = 32, .activation = "gelu", .name = "blocks.0.moe", .device = at::kMeta});
  for (auto& parameter : layer->parameters()) parameter.set_data(parameter.to(dtype));
  return layer;
}

TEST(DeviceExperts, OfALayerShareTheirStorage) {
  const auto layer = meta_layer({.experts = 4}, at::kBFloat16);
  layer->share_expert_storage();
  EXPECT_EQ(layer->device_rows_obstacle(), "");
  const auto parameters = layer->named_parameters();
  for (const char* name : {"up", "down"})
    for (int64_t e = 1; e < 4; ++e) {
      const at::Tensor first = parameters[fmt::format("experts.0.{}.weight", name)],
                       other = parameters[fmt::format("experts.{}.{}.weight", e, name)];
      EXPECT_TRUE(other.is_alias_of(first));
      EXPECT_EQ(other.storage_offset(), e * first.numel());
    }
}

TEST(DeviceExperts, OfAModelSayHowTheyAreMultiplied) {
  const Layers alike = {{"a", meta_layer({.experts = 4}, at::kBFloat16)}},
               mixed = {alike[0], {"b", meta_layer({.experts = 4}, at::kFloat)}};
  EXPECT_THAT(describe_products(alike), HasSubstr("stay on the GPU"));
  EXPECT_THAT(describe_products(mixed), HasSubstr("in b, they compute in Float"));
}

TEST(DeviceExperts, OfALayerSayWhetherAStepCanBeAGraph) {
  EXPECT_EQ(meta_layer({.experts = 4}, at::kBFloat16)->graph_obstacle(), "");
  EXPECT_THAT(meta_layer({.experts = 4}, at::kFloat)->graph_obstacle(),
              HasSubstr("sizes of their shares on the host: they compute in Float"));
  EXPECT_THAT(meta_layer({.experts = 4, .router = "noisy_top_k"}, at::kBFloat16)->graph_obstacle(),
              HasSubstr("noisy_top_k"));
  EXPECT_THAT(meta_layer({.experts = 4, .router = "hash", .k = 1}, at::kBFloat16)->graph_obstacle(),
              HasSubstr("hash"));
  EXPECT_THAT(
      meta_layer({.experts = 4, .second_expert = "random"}, at::kBFloat16)->graph_obstacle(),
      HasSubstr("second_expert"));
  EXPECT_THAT(meta_layer({.experts = 4, .drop = "position", .capacity_factor = 0}, at::kBFloat16)
                  ->graph_obstacle(),
              HasSubstr("capacity_factor = 0"));
}

}  // namespace
}  // namespace dovetail::moe::device_experts_test
