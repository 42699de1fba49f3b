// GPT with experts in place of feed-forwards; the layer itself is tests/moe's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>

#include "dovetail/base/error.h"
#include "dovetail/models/block.h"
#include "dovetail/models/generate.h"
#include "dovetail/models/size.h"
#include "small_models.h"

namespace dovetail::models::mixture_test {
namespace {

using testing::make_model;
using testing::random_tokens;

ModelConfig mixture() {
  ModelConfig c = testing::llama_variant();
  c.layers = 4;
  c.moe.experts = 6;
  c.moe.ffn_width = 24;
  c.moe.shared_experts = 1;
  c.moe.every = 2;
  c.moe.z_loss = 0.001;
  return c;
}

ModelConfig mixture_by(const std::string& router) {
  ModelConfig c = mixture();
  c.moe.router = router;
  if (router == "hash") c.moe.z_loss = 0;
  if (router == "base") c.moe.k = 1;
  return c;
}

std::map<std::string, at::Tensor> gradients(GPT& model, const at::Tensor& tokens) {
  model.zero_grad();
  for (const auto& [name, layer] : moe::layers_of(model)) layer->reset_load();  // a step begins
  const LossSum loss = model.loss(tokens, {.training = true, .seed = 5});
  loss.trained().backward();
  std::map<std::string, at::Tensor> result;
  for (const auto& item : model.named_parameters())
    result[item.key()] = item.value().grad().clone();
  return result;
}

TEST(Mixture, EverySecondBlockHasExperts) {
  const auto model = make_model(mixture());
  const auto names = model->named_parameters().keys();
  EXPECT_THAT(names, ::testing::IsSupersetOf(
                         {"blocks.0.ffn.up.weight", "blocks.1.moe.router.weight",
                          "blocks.1.moe.experts.0.up.weight", "blocks.1.moe.experts.5.down.weight",
                          "blocks.1.moe.shared.down.weight", "blocks.2.ffn.down.weight"}));
  for (const auto& name : names)
    EXPECT_FALSE(name.starts_with("blocks.1.ffn.") || name.starts_with("blocks.0.moe."));
}

class Size : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Mixture, Size, ::testing::Values("top_k", "noisy_top_k", "hash"));

TEST_P(Size, CountsItsParametersAndThoseATokenMeets) {
  ModelConfig with_biases = mixture_by(GetParam());
  with_biases.bias = true;
  const ModelConfig config = resolve_model_config(with_biases, 0);
  const GPT model(config, c10::kMeta);
  int64_t all = 0, beside = 0;
  for (const auto& item : model.named_parameters()) {
    all += item.value().numel();
    const bool other_expert = item.key().find(".experts.") != std::string::npos &&
                              item.key().find(".experts.0.") == std::string::npos &&
                              item.key().find(".experts.1.") == std::string::npos;
    if (other_expert) beside += item.value().numel();
  }
  EXPECT_EQ(model_size(config).parameters, all);
  EXPECT_EQ(model_size(config).active_parameters, all - beside);
  EXPECT_LT(model_size(config).flops_per_token, 6.0 * static_cast<double>(all));
}

TEST(Mixture, TheRoutersLossTrainsTheRouterAlone) {
  const auto model = make_model(mixture(), 1, at::kDouble);
  const auto tokens = random_tokens(3, 9, model->config().vocab_size);
  const LossSum loss = model->loss(tokens);
  ASSERT_TRUE(loss.router.defined());
  // Two layers of experts: each loss is at least its coefficient, times the tokens.
  EXPECT_GT(loss.router.item<double>(), 2 * 0.01 * static_cast<double>(loss.weight));
  model->zero_grad();
  loss.router.backward();
  EXPECT_GT(
      model->named_parameters()["blocks.1.moe.router.weight"].grad().abs().max().item<double>(), 0);
  EXPECT_FALSE(model->named_parameters()["blocks.3.moe.experts.0.up.weight"].grad().defined());
  EXPECT_FALSE(make_model(testing::llama_variant())->loss(tokens).router.defined());
}

TEST(Mixture, RoutersStayInFloat32UnderBfloat16) {
  const auto model = make_model(mixture(), 1, at::kBFloat16);
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["blocks.1.moe.router.weight"].scalar_type(), at::kFloat);
  EXPECT_EQ(parameters["blocks.1.moe.experts.0.up.weight"].scalar_type(), at::kBFloat16);
  EXPECT_EQ(make_model(mixture(), 1, at::kDouble)
                ->named_parameters()["blocks.1.moe.router.weight"]
                .scalar_type(),
            at::kDouble);
}

TEST(Mixture, RecomputingGivesTheSameBits) {
  for (const auto& [router, dtype] :
       std::vector<std::pair<const char*, at::ScalarType>>{{"top_k", at::kFloat},
                                                           {"top_k", at::kBFloat16},
                                                           {"noisy_top_k", at::kDouble},
                                                           {"sinkhorn", at::kFloat},
                                                           {"base", at::kFloat},
                                                           {"balanced", at::kFloat},
                                                           {"expert_choice", at::kFloat},
                                                           {"hash", at::kFloat}}) {
    ModelConfig config = mixture_by(router);
    if (config.moe.router == "top_k") config.moe.second_expert = "random";
    const auto model = make_model(config, 1, dtype);
    const auto tokens = random_tokens(3, 11, model->config().vocab_size);
    const auto kept = gradients(*model, tokens);
    model->checkpoint_activations = true;
    const moe::Layer& layer = *moe::layers_of(*model).back().second;
    for (const auto& [name, gradient] : gradients(*model, tokens))
      EXPECT_TRUE(at::equal(gradient, kept.at(name))) << router << " " << name;
    EXPECT_EQ(layer.load().choices(), 3 * 10 * config.moe.k);  // counted once
  }
}

/// Returns models for every router whose choice for a token does not depend on later tokens. They
/// cover every way to drop and pad in training.
std::vector<std::pair<std::string, ModelConfig>> causal_mixtures() {
  std::vector<std::pair<std::string, ModelConfig>> found;
  for (const char* router : {"top_k", "noisy_top_k", "sinkhorn", "base", "balanced", "hash"}) {
    for (const char* drop : {"none", "position", "probability"}) {
      if (router == std::string("hash") && drop == std::string("probability")) continue;
      for (const char* rule : {"tutel", "switch", "megatron", "megablocks", "mesh_tf"}) {
        if (drop == std::string("none") && rule != std::string("tutel")) continue;
        for (const int64_t k : {1, 2}) {
          if (router == std::string("base") && k == 2) continue;
          ModelConfig c = mixture_by(router);
          c.moe.k = k, c.moe.drop = drop, c.moe.capacity_rule = rule;
          if (c.moe.drop != "none") {
            c.moe.capacity_factor = 0.7;
            if (k == 2 && c.moe.drop == "position") c.moe.slot_order = "token";
            c.moe.pad_to_capacity = rule == std::string("switch");
            c.moe.eval_capacity_factor = rule == std::string("megatron") ? 0.7 : 0;
          }
          if (k == 2 && router != std::string("hash"))
            c.moe.second_expert = "random", c.moe.normalize = "after";
          found.emplace_back(
              std::string(router) + " " + drop + " " + rule + " " + std::to_string(k), c);
        }
      }
    }
  }
  return found;
}

TEST(Decoding, WithACacheEqualsReadingTheWholePrefix) {
  for (const auto& [name, config] : causal_mixtures()) {
    const auto model = make_model(config, 1, at::kDouble);
    const auto tokens = random_tokens(2, 12, model->config().vocab_size);
    const auto whole = model->logits(tokens);
    KvCache cache;
    for (const auto& [begin, size] :
         {std::pair<int64_t, int64_t>{0, 3}, {3, 1}, {4, 1}, {5, 2}, {7, 5}}) {
      const auto step = model->logits_with_cache(tokens.narrow(1, begin, size), cache);
      EXPECT_LT((step - whole.narrow(1, begin, size)).abs().max().item<double>(), 1e-11)
          << name << " at " << begin;
    }
  }
}

TEST(Decoding, ChoosesTheTokensThatTheWholePrefixDoes) {
  for (const auto& [name, config] : causal_mixtures()) {
    const auto model = make_model(config);
    std::vector<int32_t> history = {5, 3, 60, 12};
    const auto generated = generate(*model, history, {.max_tokens = 12, .temperature = 0});
    for (const int32_t token : generated) {
      const auto logits = model->logits(at::tensor(history, at::kLong).unsqueeze(0));
      EXPECT_EQ(token, logits[0][-1].argmax().item<int32_t>()) << name;
      history.push_back(token);
    }
  }
}

TEST(Decoding, RefusesExpertsThatChooseAmongLaterTokens) {
  const auto model = make_model(mixture_by("expert_choice"));
  EXPECT_THAT([&] { generate(*model, {1, 2}, {.max_tokens = 1}); },
              ::testing::ThrowsMessage<UserError>(
                  ::testing::HasSubstr("model.moe.router = \"expert_choice\"")));
  EXPECT_EQ(moe::reads_later_tokens(model->config().moe), "router = \"expert_choice\"");
  EXPECT_EQ(moe::reads_later_tokens(mixture().moe), "");
}

TEST(Mixture, EvaluationHasACapacityOnlyWhereAFactorAsksForOne) {
  ModelConfig config = mixture();
  config.moe.drop = "position", config.moe.capacity_rule = "switch",
  config.moe.capacity_factor = 0.1;
  const auto dropped_in = [&](double factor) {
    config.moe.eval_capacity_factor = factor;
    const auto model = make_model(config);
    model->loss(random_tokens(3, 9, model->config().vocab_size));
    return moe::layers_of(*model).back().second->load().dropped;
  };
  // 24 tokens take 2 of 6 experts each. By Switch's rule an expert has int(24 / 6 factor) slots.
  EXPECT_EQ(dropped_in(0), 0);
  EXPECT_EQ(dropped_in(0.25), 48 - 6);
  EXPECT_EQ(dropped_in(100), 0);
}

TEST(Mixture, RunsOnTheMetaDevice) {
  for (const char* router :
       {"top_k", "noisy_top_k", "sinkhorn", "balanced", "expert_choice", "hash"}) {
    const auto config = resolve_model_config(mixture_by(router), 0);
    GPT model(config, c10::kMeta);
    const auto loss = model.loss(
        at::empty({2, config.context + 1}, torch::dtype(torch::kLong).device(c10::kMeta)));
    EXPECT_EQ(loss.sum.dim(), 0);
    ASSERT_EQ(loss.router.defined(), config.moe.router != "hash");
    if (loss.router.defined()) {
      EXPECT_EQ(loss.router.dim(), 0);
    }
  }
}

}  // namespace
}  // namespace dovetail::models::mixture_test
