// Activation checkpointing: the same bits for less memory.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/types.h>

#include <map>

#include "allocation_meter.h"
#include "small_models.h"

namespace dovetail::models::recompute_test {
namespace {

using testing::make_model;
using testing::random_tokens;

std::map<std::string, at::Tensor> gradients(GPT& model,
                                            const std::vector<at::Tensor>& micro_batches) {
  model.zero_grad();
  for (const auto& tokens : micro_batches) model.loss(tokens).sum.backward();
  std::map<std::string, at::Tensor> result;
  for (const auto& item : model.named_parameters())
    result[item.key()] = item.value().grad().clone();
  return result;
}

TEST(Recompute, GivesTheSameBits) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const auto& variant : testing::variants()) {
      const auto model = make_model(variant.config, 1, dtype);
      const auto vocab = model->config().vocab_size;
      const std::vector<at::Tensor> batches = {random_tokens(3, 11, vocab, 1),
                                               random_tokens(1, 6, vocab, 2)};
      const auto kept = gradients(*model, batches);
      const auto kept_loss = model->loss(batches[0]).sum;
      model->checkpoint_activations = true;
      const auto recomputed = gradients(*model, batches);
      EXPECT_TRUE(at::equal(model->loss(batches[0]).sum, kept_loss)) << variant.name;
      for (const auto& [name, gradient] : kept) {
        EXPECT_TRUE(at::equal(recomputed.at(name), gradient)) << variant.name << " " << name;
      }
    }
  }
}

struct CountingHook : torch::autograd::PostAccumulateGradHook {
  explicit CountingHook(int& count) : count(count) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    count += parameter.grad().defined() ? 1 : 0;
  }
  int& count;
};

TEST(Recompute, RunsTheHooksOfEachGradientOnce) {
  const auto model = make_model(testing::gpt2_variant());
  model->checkpoint_activations = true;
  std::map<std::string, int> counts;
  for (const auto& item : model->named_parameters()) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        item.value(), std::make_unique<CountingHook>(counts[item.key()]));
  }
  model->loss(random_tokens(2, 9, 61)).sum.backward();
  for (const auto& [name, count] : counts) EXPECT_EQ(count, 1) << name;
}

TEST(Recompute, KeepsOneInputABlock) {
  auto config = testing::llama_variant();
  config.layers = 6;
  const auto model = make_model(config);
  const auto tokens = random_tokens(4, 17, config.vocab_size);
  const auto measure = [&](bool recompute) {
    model->checkpoint_activations = recompute;
    model->loss(tokens).sum.backward();  // the first gradients are made outside of what is measured
    const testing::AllocationMeter meter;
    const auto loss = model->loss(tokens);
    return meter.current();
  };
  const auto kept = measure(false), recomputed = measure(true);
  const int64_t input = 4 * 16 * config.width * static_cast<int64_t>(sizeof(float));
  // Beside the inputs: embedding indices, the last norm, the head.
  EXPECT_LT(recomputed, config.layers * input + 200'000);
  EXPECT_GT(kept - recomputed, config.layers * 4 * input);
}

TEST(Recompute, TrainsTheBlocksOverAFrozenEmbedding) {
  const auto model = make_model(testing::llama_variant());
  model->named_parameters()["embed.weight"].set_requires_grad(false);
  const auto run = [&](bool recompute) {
    model->checkpoint_activations = recompute;
    model->zero_grad();
    model->loss(random_tokens(2, 9, 67)).sum.backward();
    return model->named_parameters()["blocks.0.attention.qkv.weight"].grad().clone();
  };
  EXPECT_TRUE(at::equal(run(false), run(true)));
}

TEST(Recompute, DoesNotMatterWithoutGradient) {
  const auto model = make_model(testing::llama_variant());
  const auto tokens = random_tokens(2, 9, 67);
  const torch::NoGradGuard no_grad;
  const auto expected = model->logits(tokens);
  model->checkpoint_activations = true;
  EXPECT_TRUE(at::equal(model->logits(tokens), expected));
}

}  // namespace
}  // namespace dovetail::models::recompute_test
