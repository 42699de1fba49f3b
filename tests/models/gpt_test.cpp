#include "dovetail/models/gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>

#include "dovetail/base/error.h"
#include "dovetail/models/size.h"
#include "small_models.h"

namespace dovetail::models::gpt_test {
namespace {

using testing::largest_difference;
using testing::make_model;
using testing::random_tokens;
using testing::variants;

std::map<std::string, at::Tensor> gradients(GPT& model, const at::Tensor& tokens) {
  model.zero_grad();
  model.loss(tokens).sum.backward();
  std::map<std::string, at::Tensor> result;
  for (const auto& item : model.named_parameters())
    result[item.key()] = item.value().grad().clone();
  return result;
}

TEST(Gpt, NamesItsParameters) {
  const auto llama = make_model(testing::llama_variant());
  EXPECT_THAT(
      llama->named_parameters().keys(),
      ::testing::UnorderedElementsAre(
          "embed.weight", "blocks.0.attention_norm.weight", "blocks.0.attention.qkv.weight",
          "blocks.0.attention.out.weight", "blocks.0.ffn_norm.weight", "blocks.0.ffn.up.weight",
          "blocks.0.ffn.down.weight", "blocks.1.attention_norm.weight",
          "blocks.1.attention.qkv.weight", "blocks.1.attention.out.weight",
          "blocks.1.ffn_norm.weight", "blocks.1.ffn.up.weight", "blocks.1.ffn.down.weight",
          "norm.weight", "head.weight"));
  const auto gpt2 = make_model(testing::gpt2_variant());
  EXPECT_THAT(gpt2->named_parameters().keys(),
              ::testing::IsSupersetOf(
                  {"positions.weight", "blocks.1.attention.qkv.bias", "blocks.1.attention.out.bias",
                   "blocks.1.attention_norm.bias", "blocks.0.ffn_norm.bias", "blocks.0.ffn.up.bias",
                   "blocks.0.ffn.down.bias", "norm.bias"}));
  EXPECT_FALSE(gpt2->named_parameters().contains("head.weight"));
}

TEST(Gpt, IsBuiltOnTheMetaDeviceWithTheParametersOfModelSize) {
  auto configs = variants();
  for (const auto& preset : model_presets()) configs.push_back({preset.name, preset.config});
  for (const auto& [name, config] : configs) {
    const auto resolved = resolve_model_config(config, config.vocab_size > 0 ? 0 : 257);
    GPT model(resolved, c10::kMeta);
    int64_t parameters = 0, without_embedding = 0;
    for (const auto& item : model.named_parameters()) {
      EXPECT_TRUE(item.value().is_meta());
      parameters += item.value().numel();
      const bool table = item.key() == "embed.weight" || item.key() == "positions.weight" ||
                         item.key() == "head.weight";
      if (!table) without_embedding += item.value().numel();
    }
    EXPECT_EQ(parameters, model_size(resolved).parameters) << name;
    EXPECT_EQ(without_embedding, model_size(resolved).parameters_without_embedding) << name;
  }
}

TEST(Gpt, RunsOnTheMetaDevice) {
  for (const auto& variant : variants()) {
    const auto config = resolve_model_config(variant.config, 0);
    GPT model(config, c10::kMeta);
    const auto tokens =
        at::empty({2, config.context + 1}, torch::dtype(torch::kLong).device(c10::kMeta));
    const auto loss = model.loss(tokens);
    EXPECT_EQ(loss.sum.dim(), 0);
    EXPECT_EQ(loss.weight, 2 * config.context);
  }
}

TEST(Gpt, FlopsCountEachMatrixSixTimesAndHalfTheAttention) {
  const auto c = resolve_model_config(model_preset("gpt2-124m").config, 0);
  const double matrices = 12.0 * 12 * 768 * 768 + 50304.0 * 768;
  EXPECT_DOUBLE_EQ(model_size(c).flops_per_token, 6 * matrices + 6.0 * 12 * 768 * 1024);
}

TEST(Gpt, LossIsTheSumOfTheCrossEntropiesOfItsLogits) {
  for (const auto& variant : variants()) {
    const auto model = make_model(variant.config);
    const auto tokens = random_tokens(3, 9, model->config().vocab_size);
    const auto loss = model->loss(tokens);
    const auto logits = model->logits(tokens.slice(1, 0, -1));
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{3, 8, model->config().vocab_size}));
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    const auto mean = at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}),
                                             tokens.slice(1, 1).reshape({-1}));
    EXPECT_EQ(loss.weight, 24);
    EXPECT_NEAR(loss.sum.item<double>(), mean.item<double>() * 24, 1e-4 * 24) << variant.name;
  }
}

TEST(Gpt, LossesAndGradientsAddOverMicroBatches) {
  const auto model = make_model(testing::nemotron_variant(), 1, at::kDouble);
  auto tokens = random_tokens(5, 8, model->config().vocab_size);
  tokens[4].slice(0, 5).fill_(-100);
  const auto whole = model->loss(tokens);
  const auto expected = gradients(*model, tokens);
  model->zero_grad();
  double sum = 0;
  int64_t weight = 0;
  for (const auto& part : tokens.split_with_sizes({1, 3, 1})) {
    const auto loss = model->loss(part);
    loss.sum.backward();
    sum += loss.sum.item<double>();
    weight += loss.weight;
  }
  EXPECT_EQ(weight, whole.weight);
  EXPECT_EQ(weight, 5 * 7 - 3);
  EXPECT_NEAR(sum, whole.sum.item<double>(), 1e-9);
  for (const auto& item : model->named_parameters()) {
    EXPECT_LT(largest_difference(item.value().grad(), expected.at(item.key())), 1e-9) << item.key();
  }
}

TEST(Gpt, PaddingBehindASequenceChangesNothing) {
  const auto model = make_model(testing::llama_variant());
  const auto tokens = random_tokens(2, 7, model->config().vocab_size);
  const auto padded = at::cat({tokens, at::full({2, 5}, -100, tokens.options())}, 1);
  const auto a = model->loss(tokens), b = model->loss(padded);
  EXPECT_EQ(a.weight, b.weight);
  EXPECT_NEAR(a.sum.item<double>(), b.sum.item<double>(), 1e-4);
}

TEST(Gpt, NoPositionSeesALaterOne) {
  for (const auto& variant : variants()) {
    const auto model = make_model(variant.config);
    auto tokens = random_tokens(1, 11, model->config().vocab_size);
    const auto before = model->logits(tokens);
    tokens[0][7] = (tokens[0][7].item<int64_t>() + 1) % model->config().vocab_size;
    const auto after = model->logits(tokens);
    EXPECT_LT(largest_difference(before.slice(1, 0, 7), after.slice(1, 0, 7)), 1e-5)
        << variant.name;
    EXPECT_GT(largest_difference(before.slice(1, 7), after.slice(1, 7)), 1e-3) << variant.name;
  }
}

TEST(Gpt, GradientReachesEveryParameter) {
  for (const auto& variant : variants()) {
    const auto model = make_model(variant.config);
    for (const auto& [name, gradient] :
         gradients(*model, random_tokens(4, 12, model->config().vocab_size))) {
      EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << variant.name << " " << name;
      EXPECT_GT(gradient.abs().max().item<double>(), 0) << variant.name << " " << name;
    }
  }
}

TEST(Gpt, GradientsMatchFiniteDifferences) {
  for (const auto& variant : variants()) {
    const auto model = make_model(variant.config, 2, at::kDouble);
    const auto tokens = random_tokens(2, 6, model->config().vocab_size);
    const auto analytic = gradients(*model, tokens);
    const torch::NoGradGuard no_grad;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
    for (auto& item : model->named_parameters()) {
      auto& parameter = item.value();
      const auto direction = at::empty_like(parameter).normal_(0, 1, generator);
      const double step = 1e-6;
      parameter.add_(direction, step);
      const auto above = model->loss(tokens).sum.item<double>();
      parameter.add_(direction, -2 * step);
      const auto below = model->loss(tokens).sum.item<double>();
      parameter.add_(direction, step);
      const auto expected = (analytic.at(item.key()) * direction).sum().item<double>();
      EXPECT_NEAR((above - below) / (2 * step), expected, 1e-5 * (1 + std::abs(expected)))
          << variant.name << " " << item.key();
    }
  }
}

TEST(Gpt, BFloat16IsCloseToFloat32) {
  for (const auto& variant : variants()) {
    const auto exact = make_model(variant.config);
    const auto rounded = make_model(variant.config, 1, at::kBFloat16);
    const auto tokens = random_tokens(2, 10, exact->config().vocab_size);
    const auto expected = exact->logits(tokens), logits = rounded->logits(tokens);
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    EXPECT_LT(largest_difference(logits, expected), 0.1 * expected.abs().max().item<double>())
        << variant.name;
    EXPECT_GT(largest_difference(logits, expected), 0) << variant.name;
    EXPECT_NEAR(rounded->loss(tokens).sum.item<double>() / exact->loss(tokens).sum.item<double>(),
                1, 0.05)
        << variant.name;
  }
}

TEST(Gpt, SetComputeDtypeKeepsTheParametersAndTheNormsInFloat32) {
  const auto model = make_model(testing::gpt2_variant());
  const auto before = model->named_parameters();
  model->loss(random_tokens(1, 4, 61)).sum.backward();
  model->set_compute_dtype(at::kBFloat16);
  for (const auto& item : model->named_parameters()) {
    const bool of_norm = item.key().find("norm") != std::string::npos;
    EXPECT_EQ(item.value().scalar_type(), of_norm ? at::kFloat : at::kBFloat16) << item.key();
    EXPECT_TRUE(item.value().is_same(before[item.key()])) << item.key();
    EXPECT_TRUE(item.value().is_leaf() && item.value().requires_grad()) << item.key();
    EXPECT_EQ(item.value().grad().defined(), of_norm) << item.key();
  }
  model->loss(random_tokens(1, 4, 61)).sum.backward();
  for (const auto& item : model->named_parameters()) {
    EXPECT_EQ(item.value().grad().scalar_type(), item.value().scalar_type()) << item.key();
  }
  model->set_compute_dtype(at::kDouble);
  for (const auto& item : model->named_parameters())
    EXPECT_EQ(item.value().scalar_type(), at::kDouble) << item.key();
  EXPECT_EQ(model->logits(random_tokens(1, 4, 61)).scalar_type(), at::kDouble);
  EXPECT_EQ(model->loss(random_tokens(1, 4, 61)).sum.scalar_type(), at::kDouble);
  EXPECT_THROW(model->set_compute_dtype(at::kHalf), UserError);
}

TEST(Gpt, RefusesTokensThatDoNotFit) {
  const auto model = make_model(testing::llama_variant());
  const auto vocab = model->config().vocab_size, context = model->config().context;
  EXPECT_THROW(model->logits(random_tokens(1, context + 1, vocab)), UserError);
  EXPECT_NO_THROW(model->loss(random_tokens(1, context + 1, vocab)));
  EXPECT_THROW(model->loss(random_tokens(1, context + 2, vocab)), UserError);
  EXPECT_THROW(model->loss(random_tokens(2, 1, vocab)), UserError);
  EXPECT_THROW(model->logits(random_tokens(1, 4, vocab)[0]), UserError);
  EXPECT_THROW(model->logits(random_tokens(1, 4, vocab).to(at::kInt)), UserError);
  EXPECT_THROW(model->logits(at::full({1, 4}, vocab, torch::kLong)), UserError);
  EXPECT_THROW(model->logits(at::full({1, 4}, -1, torch::kLong)), UserError);
}

}  // namespace
}  // namespace dovetail::models::gpt_test
