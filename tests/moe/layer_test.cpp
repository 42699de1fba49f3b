#include "dovetail/moe/layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/moe/dispatch.h"
#include "dovetail/mx/recipe.h"
#include "dovetail/ops/simd_level.h"
#include "random.h"

namespace dovetail::moe::layer_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kWidth = 10, kFfnWidth = 6;

Config config(int64_t experts = 5, int64_t k = 2) {
  Config c;
  c.experts = experts;
  c.k = k;
  return resolve(c, kFfnWidth);
}

std::shared_ptr<Layer> layer(const Config& config, at::ScalarType dtype = at::kDouble) {
  auto made = std::make_shared<Layer>(
      config, Layer::Options{
                  .width = kWidth, .activation = "swiglu", .bias = true, .name = "blocks.0.moe"});
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (auto& parameter : made->parameters())
    parameter.copy_(0.5 * random(parameter.sizes(), seed++));
  made->to(dtype);
  return made;
}

/// Runs one feed-forward, found by its parameters' names.
at::Tensor feed_forward(const Layer& layer, const std::string& name, const at::Tensor& x) {
  const auto parameters = layer.named_parameters();
  const auto of = [&](const std::string& key) { return parameters[name + key]; };
  const auto hidden = at::linear(x, of(".up.weight"), of(".up.bias")).chunk(2, -1);
  return at::linear(at::silu(hidden[0]) * hidden[1], of(".down.weight"), of(".down.bias"));
}

/// Reference: token by token, over every choice that was not dropped.
at::Tensor by_loops(const Layer& layer, const Routing& routing, const at::Tensor& x, bool shared) {
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    at::Tensor y = shared ? feed_forward(layer, "shared", x[t]) : at::zeros({kWidth}, at::kDouble);
    for (int64_t j = 0; j < routing.expert.size(1); ++j) {
      if (routing.slot[t][j].item<int>() < 0) continue;
      const auto name = "experts." + std::to_string(routing.expert[t][j].item<int>());
      y = y + routing.weight[t][j] * feed_forward(layer, name, x[t]);
    }
    rows.push_back(y);
  }
  return at::stack(rows);
}

std::vector<at::Tensor> gradients(const at::Tensor& loss, Layer& layer, const at::Tensor& x) {
  std::vector<at::Tensor> leaves = layer.parameters();
  leaves.push_back(x);
  auto found =
      torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/true, /*create_graph=*/false,
                            /*allow_unused=*/true);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) found[i] = at::zeros_like(leaves[i]);
  }
  return found;
}

void expect_plain_loops(const Config& config, const at::Tensor& rows) {
  const auto made = layer(config);
  const at::Tensor x = rows.clone().requires_grad_(), direction = random(rows.sizes(), 99);
  const Layer::Output out = made->forward(x, {.training = true});
  const Routing routing =
      route(at::linear(x, made->named_parameters()["router.weight"]), routing_spec(config));
  const at::Tensor expected = by_loops(*made, routing, x, config.shared_experts > 0);
  EXPECT_TRUE(at::allclose(out.y, expected, 1e-12, 1e-12));
  const at::Tensor losses = config.load_loss * routing.load_loss + config.z_loss * routing.z_loss;
  EXPECT_TRUE(at::allclose(out.loss, losses, 1e-12, 1e-12));
  const auto found = gradients((out.y * direction).sum() + out.loss, *made, x);
  const auto wanted = gradients((expected * direction).sum() + losses, *made, x);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::allclose(found[i], wanted[i], 1e-11, 1e-12)) << i;
}

TEST(MoeLayer, IsItsExpertsTokenByToken) {
  const at::Tensor x = random({37, kWidth}, 50);
  expect_plain_loops(config(), x);
  expect_plain_loops(config(5, 1), x);
  expect_plain_loops(config(1, 1), x);
  Config shared = config(8, 3);
  shared.shared_experts = 2;
  shared.z_loss = 0.1;
  expect_plain_loops(shared, x);
  Config dropping = config(4, 2);
  dropping.drop = "position";
  dropping.capacity_factor = 0.5;
  expect_plain_loops(dropping, x);
  Config sigmoid = config(8, 2);
  sigmoid.score = "sigmoid";
  sigmoid.num_groups = 4;
  sigmoid.top_groups = 2;
  sigmoid.scale = 2.5;
  expect_plain_loops(sigmoid, x);
}

TEST(MoeLayer, ExpertsThatChooseTheirTokens) {
  constexpr int64_t kTokens = 37;
  Config c = config(5, 2);
  c.router = "expert_choice";
  c.load_loss = 0;
  c.load_scope = "auto";
  c.scale = 1.5;
  c.z_loss = 0.1;
  const auto made = layer(resolve(c, kFfnWidth));
  const at::Tensor x = random({kTokens, kWidth}, 50).requires_grad_();
  const at::Tensor logits = at::linear(x, made->named_parameters()["router.weight"]),
                   p = at::softmax(logits, 1);
  std::vector<at::Tensor> rows(kTokens, at::zeros({kWidth}, at::kDouble));
  for (int64_t e = 0; e < 5; ++e) {
    std::vector<int64_t> best(kTokens);
    std::iota(best.begin(), best.end(), 0);
    std::stable_sort(best.begin(), best.end(), [&](int64_t a, int64_t b) {
      return p[a][e].item<double>() > p[b][e].item<double>();
    });
    for (size_t i = 0; i < 15; ++i) {  // ceil(37 * 2 / 5)
      auto& y = rows[static_cast<size_t>(best[i])];
      y = y + 1.5 * p[best[i]][e] * feed_forward(*made, "experts." + std::to_string(e), x[best[i]]);
    }
  }
  const at::Tensor expected = at::stack(rows), direction = random({kTokens, kWidth}, 99);
  const at::Tensor z_loss = 0.1 * at::logsumexp(logits, 1).square().mean();
  const Layer::Output out = made->forward(x);
  EXPECT_TRUE(at::allclose(out.y, expected, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(out.loss, z_loss, 1e-12));
  EXPECT_EQ(made->load().count, std::vector<int64_t>(5, 15));
  EXPECT_EQ(made->load().dropped, 0);
  const auto found = gradients((out.y * direction).sum() + out.loss, *made, x);
  const auto wanted = gradients((expected * direction).sum() + z_loss, *made, x);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::allclose(found[i], wanted[i], 1e-11, 1e-12)) << i;

  EXPECT_EQ(made->forward(at::empty({0, kWidth}, at::kDouble)).y.size(0), 0);
  made->forward(x.narrow(0, 0, 1));  // every expert takes the only token
  EXPECT_EQ(made->load().choices(), 75 + 5);
}

TEST(MoeLayer, HashedTokensAreTheMeanOfTheirExperts) {
  Config c = config(5, 2);
  c.router = "hash";
  c.load_loss = 0;
  c.load_scope = "auto";
  const auto made = layer(resolve(c, kFfnWidth));
  const at::Tensor x = random({2, 9, kWidth}, 50), ids = at::randint(100, {2, 9}, at::kLong);
  const Pass pass = {.training = true, .tokens = ids};
  const at::Tensor y = made->forward(x, pass).y;
  const at::Tensor expert = made->router().forward(x, pass).routing.expert.view({2, 9, 2});
  for (int64_t t = 0; t < 9; ++t) {
    at::Tensor expected = at::zeros({kWidth}, at::kDouble);
    for (int64_t j = 0; j < 2; ++j)
      expected +=
          0.5 *
          feed_forward(*made, "experts." + std::to_string(expert[1][t][j].item<int>()), x[1][t]);
    EXPECT_TRUE(at::allclose(y[1][t], expected, 1e-12, 1e-12));
  }
}

TEST(MoeLayer, TakesTokensThatAllWantOneExpertAndNoneAtAll) {
  const at::Tensor same = random({1, kWidth}, 51).expand({29, kWidth}).contiguous();
  expect_plain_loops(config(), same);
  const auto made = layer(config());
  const auto empty = made->forward(at::empty({0, kWidth}, at::kDouble));
  EXPECT_EQ(empty.y.sizes(), (std::vector<int64_t>{0, kWidth}));
  EXPECT_EQ(empty.loss.item<double>(), 0);
  made->forward(same);
  made->forward(same);
  EXPECT_EQ(std::ranges::max(made->load().count), 2 * 29);
  EXPECT_EQ(made->load().choices(), 2 * 2 * 29);
  EXPECT_EQ(made->load().dropped, 0);
}

TEST(MoeLayer, DroppedTokensGetNothing) {
  Config c = config(2, 1);
  c.drop = "position";
  c.capacity_factor = 0.5;  // int(0.5 * 10 / 2) slots
  const auto made = layer(c);
  const at::Tensor x = random({1, kWidth}, 52).expand({10, kWidth}).contiguous();
  const at::Tensor y = made->forward(x, {.training = true}).y;
  EXPECT_GT(y.narrow(0, 0, 2).abs().amin().item<double>(), 0);
  EXPECT_EQ(y.narrow(0, 2, 8).abs().max().item<double>(), 0);
  EXPECT_EQ(made->load().dropped, 8);
  EXPECT_GT(made->forward(x).y.abs().amin().item<double>(), 0);  // none in evaluation
}

TEST(MoeLayer, ExpertsWithoutTokensHaveGradientsOfZero) {
  const auto made = layer(config(5, 1));
  made->forward(random({1, kWidth}, 53)).y.sum().backward();
  for (const auto& item : made->named_parameters())
    EXPECT_TRUE(item.value().grad().defined()) << item.key();
}

TEST(MoeLayer, RoutesInFloat32WhateverTheExpertsComputeIn) {
  const auto made = layer(config(), at::kFloat);
  at::Tensor weight = made->named_parameters()["router.weight"];
  for (auto& parameter : made->parameters()) {
    if (!parameter.is_same(weight)) parameter.set_data(parameter.detach().to(at::kBFloat16));
  }
  const at::Tensor x = random({64, kWidth}, 54).to(at::kBFloat16);
  const at::Tensor counts =
      route(at::linear(x.to(at::kFloat), weight), routing_spec(config())).count;
  EXPECT_EQ(made->forward(x).y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(at::tensor(made->load().count), counts));
}

TEST(MoeLayer, IsTheSameWithAndWithoutItsKernel) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto made = layer(config(), at::kFloat);
    for (auto& parameter : made->named_parameters()) {
      if (parameter.key() != "router.weight")
        parameter.value().set_data(parameter.value().detach().to(dtype));
    }
    const at::Tensor x = random({64, kWidth}, 54).to(dtype);
    const auto all = [&made, &x] {
      const at::Tensor y = made->forward(x).y;
      auto found = gradients(y.sum(), *made, x.detach().requires_grad_());
      found.push_back(y);
      return found;
    };
    const auto grouped = all();
    ops::set_disabled_kernels("experts");
    const auto one_by_one = all();
    ops::set_disabled_kernels("");
    const double tolerance = dtype == at::kFloat ? 1e-5 : 3e-2;
    for (size_t i = 0; i < grouped.size(); ++i)
      EXPECT_TRUE(at::allclose(grouped[i], one_by_one[i], tolerance, tolerance)) << i;
  }
}

TEST(MoeLayer, QuantizesItsExperts) {
  const auto made = layer(config(4, 2), at::kFloat);
  const auto linears = mx::quantizable_linears(*made);
  ASSERT_EQ(linears.size(), 8u);
  EXPECT_EQ(linears.front()->options().name, "blocks.0.moe.experts.0.up");
  const at::Tensor x = random({64, kWidth}, 55).to(at::kFloat), plain = made->forward(x).y;
  for (const auto& linear : linears)
    linear->set_recipe(mx::find_recipe(mx::built_in_recipes(), "mxfp8").linear);
  const at::Tensor quantized = made->forward(x).y;
  EXPECT_FALSE(at::equal(quantized, plain));
  EXPECT_LT((quantized - plain).norm().item<float>(), 0.1 * plain.norm().item<float>());
}

/// Output, load balance loss, gradients and the statistics of the experts' quantizations.
struct QuantizedStep {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> blocks;
};

QuantizedStep quantized_step(const Config& config, const std::string& recipe,
                             at::ScalarType dtype) {
  const auto made = layer(config, at::kFloat);
  for (auto& parameter : made->named_parameters()) {
    if (parameter.key() != "router.weight")
      parameter.value().set_data(parameter.value().detach().to(dtype));
  }
  const auto linears = mx::quantizable_linears(*made);
  for (const auto& linear : linears) {
    linear->set_recipe(mx::find_recipe(mx::built_in_recipes(), recipe).linear);
    linear->quantized()->begin_step(3);
  }
  const at::Tensor x = random({97, kWidth}, 54).to(dtype).requires_grad_();
  const Layer::Output out = made->forward(x, {.training = true});
  QuantizedStep found;
  const at::Tensor direction = random({97, kWidth}, 99).to(dtype);
  found.tensors = gradients((out.y * direction).sum() + out.loss, *made, x);
  found.tensors.push_back(out.y);
  for (const auto& linear : linears) {
    const mx::LinearStatistics counts = linear->quantized()->statistics();
    for (const mx::Operand operand : mx::kOperands)
      found.blocks.push_back(counts.of(operand).blocks);
  }
  return found;
}

// One operation and one module after another have the same quantized operands
// (tests/mx/linear_group_test.cpp). Sums over a token's experts are rounded otherwise: modules sum
// the gradient of x in its own dtype.
TEST(MoeLayer, QuantizedExpertsAsOneOperationAreTheirModules) {
  Config dropping = config(4, 2);
  dropping.drop = "position";
  dropping.capacity_factor = 0.5;
  Config padded = dropping;
  padded.pad_to_capacity = true;
  for (const Config& c : {config(7, 2), config(40, 3), dropping, padded}) {
    for (const char* recipe : {"mxfp8", "mxfp4_stochastic", "fp8_block"}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message()
                     << c.experts << " " << c.drop << " " << recipe << " " << at::toString(dtype));
        const QuantizedStep grouped = quantized_step(c, recipe, dtype);
        ops::set_disabled_kernels("experts");
        const QuantizedStep modules = quantized_step(c, recipe, dtype);
        ops::set_disabled_kernels("");
        const double rounding = dtype == at::kFloat ? 0x1p-20 : 0x1p-6;
        for (size_t i = 0; i < grouped.tensors.size(); ++i) {
          const double largest = modules.tensors[i].abs().max().item<double>();
          EXPECT_LE((grouped.tensors[i] - modules.tensors[i]).abs().max().item<double>(),
                    rounding * largest)
              << i;
        }
        // Modules count rows of zeros, too, that they add in bfloat16.
        if (dtype == at::kFloat) {
          EXPECT_EQ(grouped.blocks, modules.blocks);
        }
      }
    }
  }
}

TEST(MoeLayer, SaysWhyItsExpertsRunOneAfterAnother) {
  const auto made = layer(config(4, 2), at::kFloat);
  const auto linears = mx::quantizable_linears(*made);
  const auto set = [&linears](const std::string& recipe) {
    for (const auto& linear : linears)
      linear->set_recipe(mx::find_recipe(mx::built_in_recipes(), recipe).linear);
  };
  EXPECT_EQ(made->recorded_obstacle(at::kFloat, at::kCPU), "");
  EXPECT_THAT(made->recorded_obstacle(at::kBFloat16, at::kCPU), HasSubstr("experts in BFloat16"));
  EXPECT_THAT(made->recorded_obstacle(at::kFloat, at::kCUDA), HasSubstr("multiples of 8"));
  set("mxfp8");
  EXPECT_EQ(made->grouped_obstacle(at::kFloat, at::kCPU), "");
  EXPECT_EQ(made->recorded_obstacle(at::kFloat, at::kCPU), "");
  EXPECT_THAT(made->recorded_obstacle(at::kFloat, at::kCUDA), HasSubstr("quantized experts"));
  set("fp8_block");
  EXPECT_EQ(made->grouped_obstacle(at::kFloat, at::kCPU), "");
  EXPECT_THAT(made->recorded_obstacle(at::kFloat, at::kCPU),
              HasSubstr("FP8 has tensors of each expert"));
  set("mxfp8");
  linears.back()->set_recipe({});
  EXPECT_THAT(made->grouped_obstacle(at::kFloat, at::kCPU), HasSubstr("different recipes"));
  EXPECT_THAT(made->recorded_obstacle(at::kFloat, at::kCPU),
              HasSubstr("experts run one after another"));
  linears.back()->set_recipe(mx::find_recipe(mx::built_in_recipes(), "mxfp8").linear);
  ops::set_disabled_kernels("experts");
  EXPECT_THAT(made->grouped_obstacle(at::kFloat, at::kCPU), HasSubstr("switched off"));
  ops::set_disabled_kernels("");
}

TEST(MoeConfig, SaysWhatCannotBe) {
  const auto resolve_with = [](auto change) {
    Config c;
    c.experts = 8;
    change(c);
    return resolve(c, kFfnWidth);
  };
  EXPECT_EQ(resolve_with([](Config&) {}).ffn_width, kFfnWidth);
  EXPECT_THAT([&] { resolve_with([](Config& c) { c.k = 9; }); },
              ThrowsMessage<UserError>(HasSubstr("k = 9 must be")));
  EXPECT_THAT([&] { resolve_with([](Config& c) { c.num_groups = 3; }); },
              ThrowsMessage<UserError>(HasSubstr("model.moe: num_groups = 3 does not divide")));
  EXPECT_THAT([&] { resolve_with([](Config& c) { c.capacity_factor = 2; }); },
              ThrowsMessage<UserError>(HasSubstr("do nothing")));
  EXPECT_THAT([&] { resolve_with([](Config& c) { c.experts = 0, c.score = "sigmoid"; }); },
              ThrowsMessage<UserError>(HasSubstr("model.moe.experts = 0")));
}

}  // namespace
}  // namespace dovetail::moe::layer_test
