#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail::models {
class GPT;
}  // namespace dovetail::models

namespace dovetail::train {

/// Question of a multiple-choice task, as in MMLU, ARC and HellaSwag: which of `choices` continues
/// `context`?
struct MultipleChoiceItem {
  std::string context;
  std::vector<std::string> choices;
  int64_t answer = 0;  ///< index of the correct choice
};

/// Reads items from a JSONL file, one object {"context", "choices", "answer"} per line. Skips empty
/// lines. Throws UserError with file, line and reason.
std::vector<MultipleChoiceItem> read_multiple_choice(const std::filesystem::path& path);
/// Reads items from `jsonl`, the content of a JSONL file. Error messages use `name` as the name of
/// the file.
std::vector<MultipleChoiceItem> parse_multiple_choice(std::string_view jsonl,
                                                      const std::string& name);

struct MultipleChoiceOptions {
  /// Number of examples with their answers that precede each question in the prompt.
  int64_t shots = 0;
  int64_t max_items = 0;  ///< maximum number of items to score; 0: all
};

/// Question as the model reads it: for choice c, the text prompts[c] + continuations[c].
struct MultipleChoiceQuestion {
  std::vector<std::string> prompts;  ///< one for all choices, or one per choice
  /// Texts whose log-likelihood is the score: one for all choices, or one per choice.
  std::vector<std::string> continuations;
  std::vector<std::string> choices;  ///< texts whose length divides the normalised scores
  int64_t answer = 0;                ///< index of the correct choice
};

/// Returns the questions of a task, each with `options.shots` solved items before it. They are the
/// first items without the question itself, joined as "context choice\n\n". A continuation is
/// " " + choice. Throws UserError if there are fewer than `options.shots` other items.
std::vector<MultipleChoiceQuestion> make_questions(const std::vector<MultipleChoiceItem>& items,
                                                   const MultipleChoiceOptions& options);

/// Result of score_multiple_choice. The model answers an item with the choice that has the highest
/// score. An accuracy is the fraction of items that the model answers correctly. A standard error
/// is sqrt(p (1 - p) / (items - 1)) of an accuracy p; 0 for one item.
struct MultipleChoiceResult {
  int64_t items = 0;          ///< number of scored items
  double accuracy = 0;        ///< accuracy if the score is the log-likelihood ("acc" of lm-eval)
  double standard_error = 0;  ///< error of `accuracy`
  /// Accuracy if the score is the log-likelihood per character ("acc_norm").
  double accuracy_normalized = 0;
  double standard_error_normalized = 0;  ///< error of `accuracy_normalized`
  /// Accuracy if the score is the log-likelihood per byte ("acc_bytes").
  double accuracy_per_byte = 0;
  double chance = 0;  ///< expected accuracy of guessing: mean of 1 / number of choices
};

/// Scores and answers of one question.
struct ScoredQuestion {
  size_t index = 0;                     ///< index of the question
  std::vector<double> log_likelihoods;  ///< (choices), in nats
  int64_t chosen = 0;                   ///< choice with the highest log-likelihood
  int64_t chosen_normalized = 0;        ///< choice with the highest log-likelihood per character
  int64_t chosen_per_byte = 0;          ///< choice with the highest log-likelihood per byte
};

/// Scores questions as EleutherAI's lm-evaluation-harness does (output_type multiple_choice).
///
/// - The tokens of a continuation are encode(prompt + continuation) without the first
///   |encode(prompt)| tokens.
/// - White space at the end of the prompt counts towards the continuation.
/// - A prompt that does not fit into model.context loses its beginning.
/// - An empty prompt is the end-of-document token.
/// - On a tie the first choice wins.
///
/// Calls `scored` after each question.
MultipleChoiceResult score_multiple_choice(
    models::GPT& model, const data::Tokenizer& tokenizer,
    const std::vector<MultipleChoiceQuestion>& questions,
    const std::function<void(const ScoredQuestion&)>& scored = {});

/// Returns the sum over tokens of log p(continuation | prompt), for each of several continuations
/// of one prompt. The model reads the prompt once if it fits into model.context before the longest
/// continuation. Else it loses its beginning, for each continuation as much as needed. Arguments
/// are token ids. The prompt has at least one token; each continuation has 1 to model.context
/// tokens.
std::vector<double> continuation_log_likelihoods(
    models::GPT& model, const std::vector<int32_t>& prompt,
    const std::vector<std::vector<int32_t>>& continuations);

}  // namespace dovetail::train
