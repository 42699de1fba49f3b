#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail {

class GPT;

/// A question of a multiple-choice task as MMLU, ARC and HellaSwag are scored: which of `choices`
/// continues `context`?
struct MultipleChoiceItem {
  std::string context;
  std::vector<std::string> choices;
  int64_t answer = 0;  ///< index of the right one
};

/// Items from JSONL, one object {"context", "choices", "answer"} a line, empty lines left out.
/// Throws UserError with file, line and reason.
std::vector<MultipleChoiceItem> read_multiple_choice(const std::filesystem::path& path);
std::vector<MultipleChoiceItem> parse_multiple_choice(std::string_view jsonl,
                                                      const std::string& name);

struct MultipleChoiceResult {
  int64_t items = 0;
  double accuracy = 0;  ///< choice of the highest log-likelihood ("acc" of lm-eval)
  double accuracy_normalized =
      0;  ///< of the highest log-likelihood per character of the choice ("acc_norm")
  double accuracy_per_byte = 0;  ///< per byte of it ("acc_bytes")
  double chance = 0;             ///< of guessing: mean of 1 / choices
  double standard_error = 0;     ///< of `accuracy`: sqrt(p (1 - p) / (items - 1)); 0 for one item
};

struct MultipleChoiceOptions {
  int64_t shots =
      0;  ///< solved items put before each question: the first of the file other than itself
  int64_t max_items = 0;  ///< 0: all
};

/// Score a task as EleutherAI's lm-evaluation-harness does (output_type multiple_choice):
///   prompt = shots joined as "context choice\n\n", then the context; each choice is scored as " "
///   + choice. The tokens of a choice are those of prompt + " " + choice after the first
///   |encode(prompt)|; white space at the end of the prompt counts to the choice. A prompt that
///   does not fit loses its beginning (as much for every choice of the item: the harness cuts each
///   on its own). An empty prompt is the end-of-document token. Ties go to the first choice.
/// `progress(done, items)` is called after each item.
MultipleChoiceResult score_multiple_choice(
    GPT& model, const Tokenizer& tokenizer, const std::vector<MultipleChoiceItem>& items,
    const MultipleChoiceOptions& options,
    const std::function<void(int64_t, int64_t)>& progress = {});

/// Sum of log p(continuation | prompt) for each of several continuations of one prompt, which is
/// read once. Token ids; the prompt has at least one, each continuation at least one and at most
/// model.context.
std::vector<double> continuation_log_likelihoods(
    GPT& model, std::vector<int32_t> prompt,
    const std::vector<std::vector<int32_t>>& continuations);

}  // namespace dovetail
