#include "dovetail/train/gpt/multiple_choice.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/models/gpt.h"

namespace dovetail::train::multiple_choice_test {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<models::GPT> small_model(int64_t context, const std::string& positions = "rotary") {
  models::ModelConfig config;
  config.layers = 2;
  config.width = 32;
  config.heads = 4;
  config.context = context;
  config.positions = positions;
  config.init_std = 0.2;  // far from uniform, so that choices differ
  auto model = std::make_shared<models::GPT>(
      models::resolve_model_config(config, data::bytes_tokenizer()->vocab_size()));
  initialize(*model, 7);
  return model;
}

/// The oracle: the whole text in one forward pass without a cache, cut on the left to the context.
double whole_log_likelihood(models::GPT& model, std::vector<int32_t> prompt,
                            const std::vector<int32_t>& continuation) {
  const c10::NoGradGuard no_grad;
  std::vector<int64_t> tokens(prompt.begin(), prompt.end());
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  const auto most = static_cast<size_t>(model.config().context) + 1;
  if (tokens.size() > most)
    tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(most));
  const at::Tensor read =
      at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end() - 1)).unsqueeze(0);
  const at::Tensor log_p = at::log_softmax(model.logits(read).squeeze(0), -1, at::kDouble);
  double sum = 0;
  for (size_t i = tokens.size() - continuation.size(); i < tokens.size(); ++i) {
    sum += log_p[static_cast<int64_t>(i) - 1][tokens[i]].item<double>();
  }
  return sum;
}

std::vector<int32_t> ids(int length, int seed) {
  std::vector<int32_t> out(static_cast<size_t>(length));
  for (int i = 0; i < length; ++i)
    out[static_cast<size_t>(i)] = (seed * 31 + i * 57 + i * i * 13) % 256;
  return out;
}

TEST(ContinuationLogLikelihoods, EqualOnePassOverTheWholeText) {
  for (const char* positions : {"rotary", "learned"}) {
    const auto model = small_model(24, positions);
    for (const int prompt : {1, 2, 7, 20, 24}) {
      const std::vector<std::vector<int32_t>> continuations = {ids(1, 1), ids(5, 2), ids(2, 3)};
      if (prompt + 5 > 25) continue;  // the next test
      const auto sums = continuation_log_likelihoods(*model, ids(prompt, 9), continuations);
      for (size_t i = 0; i < continuations.size(); ++i) {
        EXPECT_NEAR(sums[i], whole_log_likelihood(*model, ids(prompt, 9), continuations[i]), 1e-4)
            << prompt << " " << i;
      }
    }
  }
}

TEST(ContinuationLogLikelihoods, APromptThatDoesNotFitLosesItsBeginning) {
  const auto model = small_model(16);
  for (const int prompt : {12, 13, 16, 17, 40}) {
    const auto sums = continuation_log_likelihoods(*model, ids(prompt, 4), {ids(5, 2), ids(5, 3)});
    EXPECT_NEAR(sums[0], whole_log_likelihood(*model, ids(prompt, 4), ids(5, 2)), 1e-4) << prompt;
    EXPECT_NEAR(sums[1], whole_log_likelihood(*model, ids(prompt, 4), ids(5, 3)), 1e-4) << prompt;
  }
  // Each continuation leaves as much of the prompt as fits before it.
  const auto unequal = continuation_log_likelihoods(*model, ids(40, 4), {ids(1, 2), ids(9, 3)});
  EXPECT_NEAR(unequal[0], whole_log_likelihood(*model, ids(40, 4), ids(1, 2)), 1e-4);
  EXPECT_NEAR(unequal[1], whole_log_likelihood(*model, ids(40, 4), ids(9, 3)), 1e-4);
  const auto whole_context = continuation_log_likelihoods(*model, ids(3, 4), {ids(16, 2)});
  EXPECT_NEAR(whole_context[0], whole_log_likelihood(*model, ids(3, 4), ids(16, 2)), 1e-4);
  EXPECT_THROW(continuation_log_likelihoods(*model, ids(3, 4), {ids(17, 2)}), UserError);
}

/// Scores like the harness, in explicit steps: the text, the shots, the cut between prompt and
/// choice.
MultipleChoiceResult scored_by_hand(models::GPT& model,
                                    const std::vector<MultipleChoiceItem>& items, size_t shots) {
  const auto tokenizer = data::bytes_tokenizer();
  double right = 0, per_character = 0, per_byte = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    std::string text;
    for (size_t k = 0, used = 0; k < items.size() && used < shots; ++k) {
      if (k == i) continue;
      text +=
          items[k].context + " " + items[k].choices[static_cast<size_t>(items[k].answer)] + "\n\n";
      ++used;
    }
    text += items[i].context;
    size_t best[3] = {0, 0, 0};
    double top[3] = {-1e300, -1e300, -1e300};
    for (size_t c = 0; c < items[i].choices.size(); ++c) {
      const std::string& choice = items[i].choices[c];
      // With the byte tokenizer the tokens of a text are its bytes. So moving white space to the
      // continuation only moves the cut.
      const size_t cut =
          text.find_last_not_of(" \n") == std::string::npos ? 0 : text.find_last_not_of(" \n") + 1;
      std::vector<int32_t> prompt = tokenizer->encode(text.substr(0, cut));
      if (prompt.empty()) prompt = {256};
      const double sum =
          whole_log_likelihood(model, prompt, tokenizer->encode(text.substr(cut) + " " + choice));
      double characters = 0;
      for (const char byte : choice) characters += (byte & 0xC0) != 0x80;
      const double scores[3] = {sum, sum / characters, sum / static_cast<double>(choice.size())};
      for (int kind = 0; kind < 3; ++kind) {
        if (scores[kind] > top[kind]) top[kind] = scores[kind], best[kind] = c;
      }
    }
    right += static_cast<int64_t>(best[0]) == items[i].answer;
    per_character += static_cast<int64_t>(best[1]) == items[i].answer;
    per_byte += static_cast<int64_t>(best[2]) == items[i].answer;
  }
  const auto n = static_cast<double>(items.size());
  return {.accuracy = right / n,
          .accuracy_normalized = per_character / n,
          .accuracy_per_byte = per_byte / n};
}

TEST(MultipleChoice, ScoresAsTheHarnessDoes) {
  const auto model = small_model(160);
  std::vector<MultipleChoiceItem> items;
  const std::vector<std::string> words = {"a",    "no",      "été",   "seven apples",
                                          "日本", "the end", "x = 1", "Ünïcödé wörds"};
  for (int i = 0; i < 12; ++i) {
    MultipleChoiceItem item{
        .context = i == 5 ? "" : "Question " + std::to_string(i) + (i % 3 == 0 ? ": " : ":\n\n"),
        .answer = i % 3};
    for (int c = 0; c < 3; ++c)
      item.choices.push_back(words[static_cast<size_t>(i * 5 + c * 3) % words.size()]);
    items.push_back(item);
  }
  for (const int64_t shots : {0, 1, 3}) {
    const auto result = score_multiple_choice(*model, *data::bytes_tokenizer(),
                                              make_questions(items, {.shots = shots}));
    const auto expected = scored_by_hand(*model, items, static_cast<size_t>(shots));
    EXPECT_EQ(result.items, 12);
    EXPECT_DOUBLE_EQ(result.accuracy, expected.accuracy) << shots;
    EXPECT_DOUBLE_EQ(result.accuracy_normalized, expected.accuracy_normalized) << shots;
    EXPECT_DOUBLE_EQ(result.accuracy_per_byte, expected.accuracy_per_byte) << shots;
    EXPECT_DOUBLE_EQ(result.chance, 1.0 / 3);
  }
}

TEST(MultipleChoice, TheTrueAnswersOfAModelScoreOne) {
  const auto model = small_model(64);
  std::vector<MultipleChoiceItem> items;
  for (int i = 0; i < 5; ++i)
    items.push_back({.context = "q" + std::to_string(i), .choices = {"ab", "cd", "ef", "gh"}});
  for (auto& item : items) {
    std::vector<double> sums;
    for (const auto& choice : item.choices) {
      sums.push_back(whole_log_likelihood(*model, data::bytes_tokenizer()->encode(item.context),
                                          data::bytes_tokenizer()->encode(" " + choice)));
    }
    item.answer = std::max_element(sums.begin(), sums.end()) - sums.begin();
  }
  size_t calls = 0;
  const auto score = [&](const MultipleChoiceOptions& options) {
    return score_multiple_choice(*model, *data::bytes_tokenizer(), make_questions(items, options),
                                 [&](const ScoredQuestion& scored) {
                                   EXPECT_EQ(scored.index, calls++);
                                   EXPECT_EQ(scored.log_likelihoods.size(), 4);
                                 });
  };
  const auto result = score({});
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(result.accuracy, 1);
  EXPECT_EQ(result.standard_error, 0);
  for (auto& item : items) item.answer = (item.answer + 1) % 4;
  calls = 0;
  EXPECT_EQ(score({}).accuracy, 0);
  calls = 0;
  EXPECT_EQ(score({.max_items = 2}).items, 2);
  EXPECT_THROW(make_questions(items, {.shots = 5}), UserError);
}

TEST(MultipleChoice, ScoresOneEndingAfterEachContext) {
  const auto model = small_model(64);
  const MultipleChoiceQuestion question{.prompts = {"the cat sat ", "the dog sat"},
                                        .continuations = {" down"},
                                        .choices = {"cat", "dog"}};
  ScoredQuestion found;
  score_multiple_choice(*model, *data::bytes_tokenizer(), {question},
                        [&](const ScoredQuestion& scored) { found = scored; });
  const auto tokens = [](const std::string& text) { return data::bytes_tokenizer()->encode(text); };
  ASSERT_EQ(found.log_likelihoods.size(), 2);
  EXPECT_NEAR(found.log_likelihoods[0],
              whole_log_likelihood(*model, tokens("the cat sat"), tokens("  down")), 1e-4);
  EXPECT_NEAR(found.log_likelihoods[1],
              whole_log_likelihood(*model, tokens("the dog sat"), tokens(" down")), 1e-4);
}

TEST(ParseMultipleChoice, ReadsItemsAndSkipsEmptyLines) {
  const auto items = parse_multiple_choice(
      "{\"context\": \"a\", \"choices\": [\"x\", \"y\"], \"answer\": 1}\r\n\n  "
      "\n{\"context\":\"\",\"choices\":[\"é\",\"y\",\"z\"],\"answer\":0,\"id\":7}",
      "t");
  ASSERT_EQ(items.size(), 2);
  EXPECT_EQ(items[0].choices, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(items[0].answer, 1);
  EXPECT_EQ(items[1].choices[0], "é");
}

TEST(ParseMultipleChoice, NamesTheLineAndWhatIsWrongWithIt) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "not a JSON object"},
      {"{", "not a JSON object"},
      {R"({"context": "a", "choices": ["x", "y"]})", "no \"answer\""},
      {R"({"choices": ["x", "y"], "answer": 0})", "no \"context\""},
      {R"({"context": 1, "choices": ["x", "y"], "answer": 0})", "\"context\" is not a string"},
      {R"({"context": "a", "choices": ["x"], "answer": 0})", "two or more"},
      {R"({"context": "a", "choices": ["x", ""], "answer": 0})", "non-empty"},
      {R"({"context": "a", "choices": ["x", 2], "answer": 0})", "non-empty"},
      {R"({"context": "a", "choices": ["x", "y"], "answer": "B"})", "not the index"},
      {R"({"context": "a", "choices": ["x", "y"], "answer": 2})", "0 to 1"},
      {R"({"context": "a", "choices": ["x", "y"], "answer": -1})", "0 to 1"}};
  for (const auto& [line, reason] : cases) {
    try {
      parse_multiple_choice("\n" + line + "\n", "task.jsonl");
      ADD_FAILURE() << "taken: " << line;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(reason)) << line;
      EXPECT_EQ(error.place(), "task.jsonl:2");
    }
  }
  EXPECT_THROW(parse_multiple_choice("\n\n", "empty.jsonl"), UserError);
}

}  // namespace
}  // namespace dovetail::train::multiple_choice_test
