#include "dovetail/models/size.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "allocation_meter.h"
#include "dovetail/moe/expert_weights.h"
#include "dovetail/moe/layer.h"
#include "small_models.h"
#include "tests/comm/ranks.h"

namespace dovetail::models::size_test {
namespace {

/// Large enough that what the formula leaves out (ids, norms' gradients) does not count, small
/// enough for a second.
ModelConfig scaled(ModelConfig c, int64_t width, int64_t vocab_size) {
  c.layers = 3;
  c.width = width;
  c.head_dim = 16;
  c.heads = 6;
  c.kv_heads = c.kv_heads == 0 ? 0 : 2;
  c.ffn_width = 0;
  c.context = 64;
  c.vocab_size = vocab_size;
  c.rotary_fraction = c.positions == "rotary" ? 0.5 : 1;
  return resolve_model_config(c, 0);
}

/// Lets the experts run on this CPU as on a GPU, where their weights share storage.
void run_as_on_a_gpu(const GPT& model) {
  for (const auto& [name, layer] : moe::layers_of(model)) {
    layer->fix_sizes();
    for (const char* part : {"up.weight", "down.weight"}) {
      std::vector<at::Tensor> weights;
      for (int64_t e = 0; e < layer->experts(); ++e)
        weights.push_back(layer->named_parameters()[fmt::format("experts.{}.{}", e, part)]);
      moe::share_storage(weights);
    }
  }
}

/// Peak of tensors alive in one step beyond weights: activations, gradients and temporaries.
int64_t measured_peak(const ModelConfig& config, const MemoryEstimateOptions& options) {
  const auto model = testing::make_model(config, 1, options.bfloat16 ? at::kBFloat16 : at::kFloat);
  model->checkpoint_activations = options.recompute;
  const auto linears = mx::quantizable_linears(*model);
  for (size_t i = 0; i < options.linears.size(); ++i) linears.at(i)->set_recipe(options.linears[i]);
  if (options.device_rows) run_as_on_a_gpu(*model);
  const auto tokens =
      testing::random_tokens(options.micro_batch, config.context + 1, config.vocab_size);
  const moe::Pass pass = {.training = true, .seed = 5};
  const testing::AllocationMeter meter;
  if (options.accumulate) model->loss(tokens, pass).trained().backward();
  model->loss(tokens, pass).trained().backward();
  return meter.peak();
}

void expect_within_a_fifth(const ModelConfig& config, const MemoryEstimateOptions& options,
                           const std::string& what) {
  const auto estimate = memory_estimate(config, options);
  const auto expected = estimate.activations + estimate.gradients + estimate.workspace;
  const auto measured = measured_peak(config, options);
  EXPECT_NEAR(static_cast<double>(measured) / static_cast<double>(expected), 1, 0.2)
      << what << ": " << measured << " bytes";
}

TEST(MemoryEstimate, IsWithinAFifthOfWhatAStepAllocates) {
  for (const auto& variant : testing::variants()) {
    const auto many_tokens = scaled(variant.config, 96, 512),
               many_weights = scaled(variant.config, 160, 4096);
    expect_within_a_fifth(many_tokens, {.micro_batch = 8}, variant.name);
    expect_within_a_fifth(many_tokens, {.micro_batch = 8, .recompute = true},
                          variant.name + " recompute");
    expect_within_a_fifth(many_tokens, {.micro_batch = 8, .accumulate = true},
                          variant.name + " accumulate");
    expect_within_a_fifth(many_weights, {.micro_batch = 1}, variant.name + " one sample");
    expect_within_a_fifth(many_weights, {.micro_batch = 1, .accumulate = true},
                          variant.name + " one sample, accumulate");
  }
}

TEST(MemoryEstimate, KnowsWhatExpertsKeep) {
  const mx::LinearRecipe mxfp8 = mx::find_recipe(mx::built_in_recipes(), "mxfp8").linear;
  ModelConfig mixture = testing::llama_variant();
  mixture.moe.experts = 8;
  mixture.moe.k = 3;
  mixture.moe.ffn_width = 96;
  mixture.moe.shared_experts = 1;
  const auto many_tokens = scaled(mixture, 96, 512);
  expect_within_a_fifth(many_tokens, {.micro_batch = 8}, "experts");
  expect_within_a_fifth(many_tokens, {.micro_batch = 8, .recompute = true}, "experts, recompute");
  expect_within_a_fifth(many_tokens, {.micro_batch = 8, .bfloat16 = true}, "experts, bfloat16");
  const std::vector<mx::LinearRecipe> all(static_cast<size_t>(many_tokens.layers) * (2 + 2 * 9),
                                          mxfp8);
  expect_within_a_fifth(many_tokens, {.micro_batch = 8, .bfloat16 = true, .linears = all},
                        "experts, mxfp8");
  mixture.moe.every = 3;
  expect_within_a_fifth(scaled(mixture, 96, 512), {.micro_batch = 8}, "experts in one block");
}

TEST(MemoryEstimate, KnowsWhatExpertsOfAGpuKeep) {
  ModelConfig mixture = testing::llama_variant();
  mixture.moe.experts = 8;
  mixture.moe.k = 3;
  mixture.moe.ffn_width = 192;
  const auto expect = [&](const std::string& what) {
    const auto config = scaled(mixture, 96, 512);
    expect_within_a_fifth(config, {.micro_batch = 8, .device_rows = true}, what);
    expect_within_a_fifth(config, {.micro_batch = 8, .bfloat16 = true, .device_rows = true},
                          what + ", bfloat16");
  };
  expect("dropless");
  mixture.moe.shared_experts = 1;
  expect("shared");
  mixture.moe.drop = "position";
  mixture.moe.pad_to_capacity = true;
  mixture.moe.capacity_factor = 2;
  expect("padded");
}

TEST(MemoryEstimate, KnowsWhatQuantizedLinearsKeep) {
  const mx::LinearRecipe mxfp8 = mx::find_recipe(mx::built_in_recipes(), "mxfp8").linear;
  mx::LinearRecipe gradients_only;
  gradients_only.gradient = mxfp8.gradient;
  for (const auto& variant : testing::variants()) {
    const auto many_tokens = scaled(variant.config, 96, 512);
    const auto all = [&](const mx::LinearRecipe& recipe) {
      return std::vector<mx::LinearRecipe>(static_cast<size_t>(4 * many_tokens.layers), recipe);
    };
    for (const char* name : {"mxfp8", "nvfp4", "fp8_tensor", "fp8_block"}) {
      const mx::LinearRecipe recipe = mx::find_recipe(mx::built_in_recipes(), name).linear;
      for (const bool bfloat16 : {false, true})
        expect_within_a_fifth(many_tokens,
                              {.micro_batch = 8, .bfloat16 = bfloat16, .linears = all(recipe)},
                              variant.name + " " + name);
    }
    expect_within_a_fifth(many_tokens, {.micro_batch = 8, .linears = all(gradients_only)},
                          variant.name + " gradients");
    // One block of three, as high_precision_ends and overrides leave it.
    std::vector<mx::LinearRecipe> one_block(static_cast<size_t>(4 * many_tokens.layers));
    std::fill_n(one_block.begin() + 4, 4, mxfp8);
    expect_within_a_fifth(many_tokens, {.micro_batch = 8, .linears = one_block},
                          variant.name + " one block");
    const auto kept = [&](const std::vector<mx::LinearRecipe>& linears) {
      return memory_estimate(many_tokens, {.micro_batch = 8, .linears = linears}).activations;
    };
    EXPECT_EQ(3 * (kept({}) - kept(one_block)), kept({}) - kept(all(mxfp8))) << variant.name;
  }
}

TEST(MemoryEstimate, CountsWeightsAndOptimizerExactly) {
  for (const bool bfloat16 : {false, true}) {
    for (const auto& variant : testing::variants()) {
      const auto model =
          testing::make_model(variant.config, 1, bfloat16 ? at::kBFloat16 : at::kFloat);
      int64_t weights = 0, parameters = 0, masters = 0;
      for (const auto& parameter : model->parameters()) {
        weights += static_cast<int64_t>(parameter.nbytes());
        parameters += parameter.numel();
        if (parameter.scalar_type() != at::kFloat) masters += 4 * parameter.numel();
      }
      const auto estimate = memory_estimate(model->config(), {.bfloat16 = bfloat16});
      EXPECT_EQ(estimate.weights, weights) << variant.name;
      EXPECT_EQ(estimate.optimizer, 8 * parameters + masters) << variant.name;
    }
  }
}

TEST(MemoryEstimate, KnowsWhatSpreadExpertsKeepAndWhatIsElsewhere) {
  ModelConfig mixture = testing::llama_variant();
  mixture.moe.experts = 8;
  mixture.moe.router = "balanced";
  mixture.moe.ffn_width = 96;
  const auto config = scaled(mixture, 96, 512);
  const MemoryEstimateOptions options{.micro_batch = 8, .expert_ranks = 2};
  const auto estimate = memory_estimate(config, options),
             whole = memory_estimate(config, {.micro_batch = 8});
  const int64_t elsewhere = config.layers * 4 * 3 * 96 * 96;
  EXPECT_EQ(estimate.weights, whole.weights - 4 * elsewhere);
  EXPECT_EQ(estimate.optimizer, whole.optimizer - 8 * elsewhere);
  expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
    auto ranks = std::make_shared<moe::ExpertRanks>();
    ranks->placement = moe::make_placement(8, 2, 1, 96, false);
    ranks->group = group;
    const auto model = std::make_shared<GPT>(config, c10::kCPU, ranks);
    initialize(*model, 1);
    const auto tokens = testing::random_tokens(8, config.context + 1, config.vocab_size);
    const testing::AllocationMeter meter;
    model->loss(tokens).trained().backward();
    const auto expected = estimate.activations + estimate.gradients + estimate.workspace;
    EXPECT_NEAR(static_cast<double>(meter.peak()) / static_cast<double>(expected), 1, 0.2);
  });
}

TEST(MemoryEstimate, EachOptionMovesItTheRightWay) {
  const auto config = resolve_model_config(model_preset("nemotron-2b").config, 0);
  const auto total = [&](MemoryEstimateOptions options) {
    return memory_estimate(config, options).total();
  };
  EXPECT_LT(total({.micro_batch = 4, .recompute = true}), total({.micro_batch = 4}));
  EXPECT_LT(total({.micro_batch = 1}), total({.micro_batch = 2}));
  EXPECT_LT(total({.micro_batch = 4, .bfloat16 = true}), total({.micro_batch = 4}));
  EXPECT_LT(total({.micro_batch = 4}), total({.micro_batch = 4, .accumulate = true}));
  EXPECT_EQ(total({.micro_batch = 4, .distributed = true}),
            total({.micro_batch = 4, .accumulate = true}));
  EXPECT_LT(total({.distributed = true, .optimizer_ranks = 4}), total({.distributed = true}));
  EXPECT_LT(total({.distributed = true, .optimizer_ranks = 4, .gradient_ranks = 4}),
            total({.distributed = true, .optimizer_ranks = 4}));
}

TEST(MemoryEstimate, HoldsTheSizesOfTheLargestPresetWithoutOverflow) {
  const auto config = resolve_model_config(model_preset("nemotron-8b").config, 0);
  const auto estimate = memory_estimate(config, {.micro_batch = 64});
  EXPECT_GT(estimate.activations, int64_t{1} << 40);
  EXPECT_GT(estimate.total(), estimate.activations);
}

}  // namespace
}  // namespace dovetail::models::size_test
