#include "dovetail/train/gpt/multiple_choice.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/files/python_text.h"
#include "dovetail/models/gpt.h"

namespace dovetail::train {
namespace {

constexpr const char* kExampleLine =
    R"({"context": "2 + 2 =", "choices": ["3", "4"], "answer": 1})";
constexpr std::string_view kWhiteSpace = " \t\n\r\f\v";

MultipleChoiceItem parse_item(std::string_view line, const std::string& place) {
  const auto fail = [&](const std::string& reason) {
    return UserError(reason, fmt::format("a line looks like {}", kExampleLine), place);
  };
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw fail("this line is not a JSON object");
  for (const char* key : {"context", "choices", "answer"}) {
    if (!json.contains(key)) throw fail(fmt::format("this item has no \"{}\"", key));
  }
  MultipleChoiceItem item;
  if (!json["context"].is_string()) throw fail("\"context\" is not a string");
  item.context = json["context"];
  if (!json["choices"].is_array() || json["choices"].size() < 2)
    throw fail("\"choices\" is not a list of two or more strings");
  for (const auto& choice : json["choices"]) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      throw fail("\"choices\" holds something other than non-empty strings");
    item.choices.push_back(choice);
  }
  if (!json["answer"].is_number_integer()) throw fail("\"answer\" is not the index of a choice");
  item.answer = json["answer"];
  if (item.answer < 0 || item.answer >= static_cast<int64_t>(item.choices.size())) {
    throw fail(fmt::format("\"answer\" is {}, but the choices are 0 to {}", item.answer,
                           item.choices.size() - 1));
  }
  return item;
}

std::string prompt_of(const std::vector<MultipleChoiceItem>& items, size_t index, int64_t shots) {
  std::string prompt;
  for (size_t i = 0; i < items.size() && shots > 0; ++i) {
    if (i == index) continue;
    prompt += fmt::format("{} {}\n\n", items[i].context,
                          items[i].choices[static_cast<size_t>(items[i].answer)]);
    --shots;
  }
  return prompt + items[index].context;
}

struct TokenizedPrompt {
  std::vector<int32_t> prompt;
  std::vector<std::vector<int32_t>> continuations;
};

TokenizedPrompt tokenize(const data::Tokenizer& tokenizer, std::string_view text,
                         std::span<const std::string> continuations) {
  const std::string prompt(data::strip_end(text));
  TokenizedPrompt tokens{.prompt = tokenizer.encode(prompt)};
  for (const std::string& continuation : continuations) {
    const std::vector<int32_t> whole = tokenizer.encode(fmt::format("{}{}", text, continuation));
    user_check(whole.size() > tokens.prompt.size(), "the choice {:?} adds no token to its context",
               continuation);
    tokens.continuations.emplace_back(
        whole.begin() + static_cast<std::ptrdiff_t>(tokens.prompt.size()), whole.end());
  }
  if (tokens.prompt.empty()) {
    user_check(
        tokenizer.end_of_document() >= 0,
        "an item has an empty context, and this tokenizer has no token to begin a text with");
    tokens.prompt.push_back(tokenizer.end_of_document());
  }
  return tokens;
}

std::vector<double> log_likelihoods(models::GPT& model, const data::Tokenizer& tokenizer,
                                    const MultipleChoiceQuestion& question) {
  std::vector<double> scores;
  for (size_t i = 0; i < question.prompts.size(); ++i) {
    std::span<const std::string> continuations = question.continuations;
    if (question.prompts.size() > 1)
      continuations = continuations.subspan(continuations.size() > 1 ? i : 0, 1);
    const TokenizedPrompt tokens = tokenize(tokenizer, question.prompts[i], continuations);
    std::ranges::copy(continuation_log_likelihoods(model, tokens.prompt, tokens.continuations),
                      std::back_inserter(scores));
  }
  return scores;
}

/// Index of the highest weighted score; the first one of equal scores.
template <class Weight>
int64_t best_choice(const std::vector<double>& scores, const std::vector<std::string>& choices,
                    const Weight& weight) {
  size_t best = 0;
  for (size_t i = 1; i < scores.size(); ++i) {
    if (scores[i] / weight(choices[i]) > scores[best] / weight(choices[best])) best = i;
  }
  return static_cast<int64_t>(best);
}

double code_points(const std::string& text) {
  return static_cast<double>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

at::Tensor row_of(const std::vector<int32_t>& tokens, size_t begin, size_t end) {
  const std::vector<int64_t> ids(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                 tokens.begin() + static_cast<std::ptrdiff_t>(end));
  return at::tensor(ids, at::kLong).unsqueeze(0);
}

}  // namespace

std::vector<MultipleChoiceItem> parse_multiple_choice(std::string_view jsonl,
                                                      const std::string& name) {
  std::vector<MultipleChoiceItem> items;
  int64_t number = 0;
  while (!jsonl.empty()) {
    const size_t length = std::min(jsonl.find('\n'), jsonl.size());
    const std::string_view line = jsonl.substr(0, length);
    jsonl.remove_prefix(std::min(length + 1, jsonl.size()));
    ++number;
    if (line.find_first_not_of(kWhiteSpace) == std::string_view::npos) continue;
    items.push_back(parse_item(line, fmt::format("{}:{}", name, number)));
  }
  if (items.empty())
    throw UserError(fmt::format("{} holds no items", name),
                    fmt::format("a line looks like {}", kExampleLine));
  return items;
}

std::vector<MultipleChoiceItem> read_multiple_choice(const std::filesystem::path& path) {
  return parse_multiple_choice(read_file(path), path.string());
}

std::vector<MultipleChoiceQuestion> make_questions(const std::vector<MultipleChoiceItem>& items,
                                                   const MultipleChoiceOptions& options) {
  user_check(options.shots >= 0 && options.shots < static_cast<int64_t>(items.size()),
             "{} shots need at least {} items, but the task has {}", options.shots,
             options.shots + 1, items.size());
  const size_t count = options.max_items > 0
                           ? std::min(items.size(), static_cast<size_t>(options.max_items))
                           : items.size();
  std::vector<MultipleChoiceQuestion> questions;
  for (size_t i = 0; i < count; ++i) {
    MultipleChoiceQuestion question{.prompts = {prompt_of(items, i, options.shots)},
                                    .choices = items[i].choices,
                                    .answer = items[i].answer};
    for (const std::string& choice : items[i].choices)
      question.continuations.push_back(" " + choice);
    questions.push_back(std::move(question));
  }
  return questions;
}

std::vector<double> continuation_log_likelihoods(
    models::GPT& model, const std::vector<int32_t>& prompt,
    const std::vector<std::vector<int32_t>>& continuations) {
  const c10::NoGradGuard no_grad;
  const auto context = static_cast<size_t>(model.config().context);
  size_t longest = 0;
  for (const auto& continuation : continuations) longest = std::max(longest, continuation.size());
  user_check(longest <= context, "a choice has {} tokens, more than model.context = {}", longest,
             context);
  std::vector<double> sums;
  // The last token of a continuation is predicted, never read.
  const size_t fits = context - longest + 1;
  if (prompt.size() > fits && continuations.size() > 1) {
    for (const auto& continuation : continuations)
      sums.push_back(continuation_log_likelihoods(model, prompt, {continuation})[0]);
    return sums;
  }

  const size_t begin = prompt.size() - std::min(prompt.size(), fits);
  models::KvCache cache;
  if (prompt.size() - begin > 1)
    model.logits_with_cache(row_of(prompt, begin, prompt.size() - 1), cache);
  const int64_t shared = cache.length;
  for (const auto& continuation : continuations) {
    cache.length = shared;  // later positions are overwritten
    std::vector<int32_t> read = {prompt.back()};
    read.insert(read.end(), continuation.begin(), continuation.end() - 1);
    const at::Tensor logits_tv =
        model.logits_with_cache(row_of(read, 0, read.size()), cache).squeeze(0);
    const at::Tensor chosen = at::log_softmax(logits_tv, -1, at::kDouble)
                                  .gather(1, row_of(continuation, 0, continuation.size()).t());
    sums.push_back(chosen.sum().item<double>());
  }
  return sums;
}

MultipleChoiceResult score_multiple_choice(
    models::GPT& model, const data::Tokenizer& tokenizer,
    const std::vector<MultipleChoiceQuestion>& questions,
    const std::function<void(const ScoredQuestion&)>& scored) {
  int64_t right = 0, right_per_character = 0, right_per_byte = 0;
  double chance = 0;
  for (size_t i = 0; i < questions.size(); ++i) {
    const auto& choices = questions[i].choices;
    ScoredQuestion found{.index = i,
                         .log_likelihoods = log_likelihoods(model, tokenizer, questions[i])};
    const std::vector<double>& scores = found.log_likelihoods;
    found.chosen = best_choice(scores, choices, [](const std::string&) { return 1.0; });
    found.chosen_normalized = best_choice(scores, choices, code_points);
    found.chosen_per_byte = best_choice(
        scores, choices, [](const std::string& c) { return static_cast<double>(c.size()); });
    right += found.chosen == questions[i].answer;
    right_per_character += found.chosen_normalized == questions[i].answer;
    right_per_byte += found.chosen_per_byte == questions[i].answer;
    chance += 1.0 / static_cast<double>(choices.size());
    if (scored) scored(found);
  }
  const auto n = static_cast<double>(questions.size());
  const auto standard_error = [&](double accuracy) {
    return questions.size() > 1 ? std::sqrt(accuracy * (1 - accuracy) / (n - 1)) : 0;
  };
  MultipleChoiceResult result{.items = static_cast<int64_t>(questions.size()),
                              .accuracy = static_cast<double>(right) / n,
                              .accuracy_normalized = static_cast<double>(right_per_character) / n,
                              .accuracy_per_byte = static_cast<double>(right_per_byte) / n,
                              .chance = chance / n};
  result.standard_error = standard_error(result.accuracy);
  result.standard_error_normalized = standard_error(result.accuracy_normalized);
  return result;
}

}  // namespace dovetail::train
