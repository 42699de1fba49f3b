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

/// Result of score_multiple_choice. The model answers an item with the choice that has the highest
/// score. An accuracy is the fraction of items that the model answers correctly.
struct MultipleChoiceResult {
  int64_t items = 0;    ///< number of scored items
  double accuracy = 0;  ///< accuracy if the score is the log-likelihood ("acc" of lm-eval)
  /// Accuracy if the score is the log-likelihood per character ("acc_norm").
  double accuracy_normalized = 0;
  /// Accuracy if the score is the log-likelihood per byte ("acc_bytes").
  double accuracy_per_byte = 0;
  double chance = 0;  ///< expected accuracy of guessing: mean of 1 / number of choices
  /// Standard error of `accuracy`: sqrt(p (1 - p) / (items - 1)); 0 for one item.
  double standard_error = 0;
};

struct MultipleChoiceOptions {
  /// Number of examples with their answers that precede each question in the prompt. They are the
  /// first items of the file, without the question itself.
  int64_t shots = 0;
  int64_t max_items = 0;  ///< maximum number of items to score; 0: all
};

/// Scores a task as EleutherAI's lm-evaluation-harness does (output_type multiple_choice).
///
/// - The prompt is the shots (MultipleChoiceOptions), joined as "context choice\n\n", then the
///   context.
/// - Each choice is scored as " " + choice. Its tokens are encode(prompt + " " + choice) without
///   the first |encode(prompt)| tokens.
/// - White space at the end of the prompt counts towards the choice.
/// - A prompt that does not fit into model.context loses its beginning, equally much for every
///   choice of the item. (The harness cuts each choice's prompt separately.)
/// - An empty prompt is the end-of-document token.
/// - On a tie the first choice wins.
///
/// Calls `progress(done, items)` after each item.
MultipleChoiceResult score_multiple_choice(
    models::GPT& model, const data::Tokenizer& tokenizer,
    const std::vector<MultipleChoiceItem>& items, const MultipleChoiceOptions& options,
    const std::function<void(int64_t, int64_t)>& progress = {});

/// Returns the sum over tokens of log p(continuation | prompt), for each of several continuations
/// of one prompt. The model reads the prompt once. Arguments are token ids. The prompt has at least
/// one token; each continuation has 1 to model.context tokens.
std::vector<double> continuation_log_likelihoods(
    models::GPT& model, std::vector<int32_t> prompt,
    const std::vector<std::vector<int32_t>>& continuations);

}  // namespace dovetail::train
