#include "dovetail/models/generate.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "dovetail/base/error.h"
#include "small_models.h"

namespace dovetail::models::generate_test {
namespace {

using testing::largest_difference;
using testing::make_model;
using testing::random_tokens;
using testing::variants;

std::vector<int32_t> as_prompt(const at::Tensor& tokens) {
  const auto ids = tokens.to(at::kInt).contiguous();
  return {ids.data_ptr<int32_t>(), ids.data_ptr<int32_t>() + ids.numel()};
}

/// Greedy decoding without a cache, reading the window that `generate` promises.
std::vector<int32_t> greedy_reference(GPT& model, std::vector<int32_t> history,
                                      int64_t max_tokens) {
  const torch::NoGradGuard no_grad;
  const auto context = static_cast<size_t>(model.config().context);
  std::vector<int32_t> generated, window = history;
  if (window.size() > context)
    window.erase(window.begin(), window.end() - static_cast<int64_t>(context));
  for (int64_t i = 0; i < max_tokens; ++i) {
    if (window.size() > context)
      window.erase(window.begin(), window.end() - static_cast<int64_t>(context - context / 2));
    const auto logits = model.logits(at::tensor(window, torch::kLong).unsqueeze(0));
    generated.push_back(logits[0][-1].argmax().item<int32_t>());
    window.push_back(generated.back());
  }
  return generated;
}

TEST(Generate, CachedLogitsEqualUncached) {
  const testing::Threads one(1);
  for (const auto& variant : variants()) {
    const auto model = make_model(variant.config);
    const auto tokens = random_tokens(3, model->config().context, model->config().vocab_size);
    const auto expected = model->logits(tokens);
    for (const auto& pieces : std::vector<std::vector<int64_t>>{{5, 1, 1, 4, 2}, {1, 12}, {13}}) {
      KvCache cache;
      int64_t at = 0;
      for (const auto piece : pieces) {
        const auto logits = model->logits_with_cache(tokens.narrow(1, at, piece), cache);
        EXPECT_LT(largest_difference(logits, expected.narrow(1, at, piece)), 1e-4)
            << variant.name << " at " << at;
        EXPECT_FALSE(logits.requires_grad());
        at += piece;
        EXPECT_EQ(cache.length, at);
      }
    }
  }
}

TEST(Generate, ACacheBelongsToItsModelAndBatch) {
  const auto model = make_model(testing::llama_variant());
  KvCache cache;
  model->logits_with_cache(random_tokens(2, 5, 67), cache);
  EXPECT_THROW(model->logits_with_cache(random_tokens(3, 1, 67), cache), UserError);
  EXPECT_THROW(model->logits_with_cache(random_tokens(2, 15, 67), cache),
               UserError);  // 20 of a context of 19
  EXPECT_NO_THROW(model->logits_with_cache(random_tokens(2, 14, 67), cache));
  KvCache fresh;
  make_model(testing::nemotron_variant())->logits_with_cache(random_tokens(2, 5, 53), fresh);
  EXPECT_THROW(model->logits_with_cache(random_tokens(2, 1, 53), fresh), UserError);
}

TEST(Generate, GreedyDecodingFollowsTheUncachedModelPastTheContext) {
  const testing::Threads one(1);
  for (const auto& variant : variants()) {
    const auto model = make_model(variant.config);
    const auto vocab = model->config().vocab_size, context = model->config().context;
    for (const auto length : {int64_t{1}, context, context + 1, 2 * context + 3}) {
      const auto prompt = as_prompt(random_tokens(1, length, vocab, static_cast<uint64_t>(length)));
      EXPECT_EQ(generate(*model, prompt, {.max_tokens = 2 * context, .temperature = 0}),
                greedy_reference(*model, prompt, 2 * context))
          << variant.name << " prompt of " << length;
    }
  }
}

TEST(Generate, WorksWithAContextOfOne) {
  auto config = testing::gpt2_variant();
  config.context = 1;
  const auto model = make_model(config);
  EXPECT_EQ(generate(*model, {3, 4}, {.max_tokens = 5, .temperature = 0}),
            greedy_reference(*model, {3, 4}, 5));
}

TEST(Generate, TheSeedDecides) {
  const testing::Threads one(1);
  const auto model = make_model(testing::llama_variant());
  const GenerateOptions options{.max_tokens = 40, .temperature = 1, .seed = 3};
  auto other = options;
  other.seed = 4;
  EXPECT_EQ(generate(*model, {1}, options), generate(*model, {1}, options));
  EXPECT_NE(generate(*model, {1}, options), generate(*model, {1}, other));
}

TEST(Generate, StopsWhereItIsTold) {
  const auto model = make_model(testing::llama_variant());
  GenerateOptions options{.max_tokens = 30, .temperature = 1, .seed = 3};
  const auto all = generate(*model, {1}, options);
  ASSERT_EQ(all.size(), 30u);
  std::vector<int32_t> seen;
  const auto four = generate(*model, {1}, options, [&](int32_t token) {
    seen.push_back(token);
    return seen.size() < 4;
  });
  EXPECT_EQ(four, std::vector<int32_t>(all.begin(), all.begin() + 4));
  EXPECT_EQ(seen, four);
  options.stop_token = all[7];
  const auto stopped = generate(*model, {1}, options);
  EXPECT_EQ(stopped.back(), all[7]);
  EXPECT_LE(stopped.size(), 8u);
  options.max_tokens = 0;
  EXPECT_TRUE(generate(*model, {1}, options).empty());
}

TEST(Generate, NeverChoosesRowsBehindTheVocabulary) {
  const testing::Threads one(1);
  const auto model = make_model(testing::llama_variant());
  for (const auto token :
       generate(*model, {1}, {.max_tokens = 200, .temperature = 5, .vocab_size = 11}))
    EXPECT_LT(token, 11);
}

/// Relative frequencies of `draws` samples.
std::vector<double> frequencies(const at::Tensor& logits, const GenerateOptions& options,
                                int draws = 20000) {
  std::vector<double> result(static_cast<size_t>(logits.numel()));
  for (int i = 0; i < draws; ++i) {
    result[static_cast<size_t>(sample_token(logits, options, static_cast<uint64_t>(i)))] +=
        1.0 / draws;
  }
  return result;
}

void expect_frequencies(const at::Tensor& logits, const GenerateOptions& options,
                        const std::vector<double>& expected) {
  const auto measured = frequencies(logits, options);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(measured[i], expected[i], expected[i] > 0 ? 0.012 : 0) << i;
}

TEST(SampleToken, DrawsFromTheSoftmaxAtTheTemperature) {
  const auto logits = at::tensor({0.0f, std::log(2.0f), std::log(5.0f), std::log(2.0f)});
  expect_frequencies(logits, {.temperature = 1}, {0.1, 0.2, 0.5, 0.2});
  expect_frequencies(logits, {.temperature = 0.5}, {1.0 / 34, 4.0 / 34, 25.0 / 34, 4.0 / 34});
}

TEST(SampleToken, KeepsTheLikelyTokensOnly) {
  const auto logits = at::tensor({0.0f, std::log(2.0f), std::log(5.0f), std::log(2.0f)});
  expect_frequencies(logits, {.temperature = 1, .top_k = 1}, {0, 0, 1, 0});
  expect_frequencies(logits, {.temperature = 1, .top_k = 2},
                     {0, 2.0 / 7, 5.0 / 7, 0});  // equals: the lower id
  expect_frequencies(logits, {.temperature = 1, .top_k = 99}, {0.1, 0.2, 0.5, 0.2});
  expect_frequencies(logits, {.temperature = 1, .top_p = 0.45}, {0, 0, 1, 0});
  expect_frequencies(logits, {.temperature = 1, .top_p = 0.65}, {0, 2.0 / 7, 5.0 / 7, 0});
  expect_frequencies(logits, {.temperature = 1, .top_p = 0.85}, {0, 2.0 / 9, 5.0 / 9, 2.0 / 9});
  // top_p counts within what top_k left.
  expect_frequencies(logits, {.temperature = 1, .top_k = 2, .top_p = 0.7}, {0, 0, 1, 0});
}

TEST(SampleToken, TemperatureZeroTakesTheFirstLargest) {
  EXPECT_EQ(sample_token(at::tensor({1.0f, 3.0f, 3.0f}), {.temperature = 0}, 0), 1);
}

TEST(SampleToken, SurvivesExtremeLogits) {
  EXPECT_EQ(sample_token(at::tensor({-1e30f, 1e30f, 0.0f}), {.temperature = 1e-3}, 0), 1);
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(sample_token(at::tensor({0.0f, nan}), {}, 0), UserError);
}

TEST(Generate, RefusesWhatItCannotDo) {
  const auto model = make_model(testing::llama_variant());
  EXPECT_THROW(generate(*model, {}, {}), UserError);
  EXPECT_THROW(generate(*model, {67}, {}), UserError);
  EXPECT_THROW(generate(*model, {-1}, {}), UserError);
  EXPECT_THROW(generate(*model, {1}, {.max_tokens = -1}), UserError);
  EXPECT_THROW(generate(*model, {1}, {.temperature = -1}), UserError);
  EXPECT_THROW(generate(*model, {1}, {.top_k = -1}), UserError);
  EXPECT_THROW(generate(*model, {1}, {.top_p = 0}), UserError);
  EXPECT_THROW(generate(*model, {1}, {.top_p = 1.1}), UserError);
}

}  // namespace
}  // namespace dovetail::models::generate_test
