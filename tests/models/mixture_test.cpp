// GPT with experts in place of feed-forwards; the layer itself is tests/moe's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>

#include "dovetail/models/block.h"
#include "dovetail/models/size.h"
#include "small_models.h"

namespace dovetail::mixture_test {
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
  const LossSum loss = model.loss(tokens, {.training = true, .seed = 5});
  loss.trained().backward();
  std::map<std::string, at::Tensor> result;
  for (const auto& item : model.named_parameters()) result[item.key()] = item.value().grad().clone();
  return result;
}

TEST(Mixture, EverySecondBlockHasExperts) {
  const auto model = make_model(mixture());
  const auto names = model->named_parameters().keys();
  EXPECT_THAT(names, ::testing::IsSupersetOf({"blocks.0.ffn.up.weight", "blocks.1.moe.router.weight",
                                              "blocks.1.moe.experts.0.up.weight", "blocks.1.moe.experts.5.down.weight",
                                              "blocks.1.moe.shared.down.weight", "blocks.2.ffn.down.weight"}));
  for (const auto& name : names) EXPECT_FALSE(name.starts_with("blocks.1.ffn.") || name.starts_with("blocks.0.moe."));
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
  EXPECT_GT(model->named_parameters()["blocks.1.moe.router.weight"].grad().abs().max().item<double>(), 0);
  EXPECT_FALSE(model->named_parameters()["blocks.3.moe.experts.0.up.weight"].grad().defined());
  EXPECT_FALSE(make_model(testing::llama_variant())->loss(tokens).router.defined());
}

TEST(Mixture, RoutersStayInFloat32UnderBfloat16) {
  const auto model = make_model(mixture(), 1, at::kBFloat16);
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["blocks.1.moe.router.weight"].scalar_type(), at::kFloat);
  EXPECT_EQ(parameters["blocks.1.moe.experts.0.up.weight"].scalar_type(), at::kBFloat16);
  EXPECT_EQ(make_model(mixture(), 1, at::kDouble)->named_parameters()["blocks.1.moe.router.weight"].scalar_type(),
            at::kDouble);
}

TEST(Mixture, RecomputingGivesTheSameBits) {
  for (const auto& [router, dtype] : std::vector<std::pair<const char*, at::ScalarType>>{{"top_k", at::kFloat},
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
    moe::Layer& layer = *moe::layers_of(*model).back().second;
    layer.reset_load();
    for (const auto& [name, gradient] : gradients(*model, tokens))
      EXPECT_TRUE(at::equal(gradient, kept.at(name))) << router << " " << name;
    EXPECT_EQ(layer.load().choices(), 3 * 10 * config.moe.k);  // counted once
  }
}

// Not of experts that choose among a pass's tokens, nor of those taken in turn.
class Decoding : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Mixture, Decoding, ::testing::Values("top_k", "noisy_top_k", "sinkhorn", "base", "hash"));

TEST_P(Decoding, WithACacheRoutesAsTheWholeSequenceDoes) {
  const auto model = make_model(mixture_by(GetParam()));
  const auto tokens = random_tokens(2, 12, model->config().vocab_size);
  const auto whole = model->logits(tokens);
  KvCache cache;
  for (int64_t t = 0; t < tokens.size(1); ++t) {
    const auto step = model->logits_with_cache(tokens.narrow(1, t, 1), cache);
    EXPECT_TRUE(at::allclose(step.squeeze(1), whole.select(1, t), 1e-4, 1e-4)) << t;
  }
}

TEST(Mixture, RunsOnTheMetaDevice) {
  for (const char* router : {"top_k", "noisy_top_k", "sinkhorn", "balanced", "expert_choice", "hash"}) {
    const auto config = resolve_model_config(mixture_by(router), 0);
    GPT model(config, c10::kMeta);
    const auto loss = model.loss(at::empty({2, config.context + 1}, torch::dtype(torch::kLong).device(c10::kMeta)));
    EXPECT_EQ(loss.sum.dim(), 0);
    ASSERT_EQ(loss.router.defined(), config.moe.router != "hash");
    if (loss.router.defined()) {
      EXPECT_EQ(loss.router.dim(), 0);
    }
  }
}

}  // namespace
}  // namespace dovetail::mixture_test
