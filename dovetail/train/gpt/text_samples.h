#pragma once

#include <string>
#include <vector>

#include "dovetail/data/text/tokenizer.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Prompt, and the text that the model wrote after it.
struct Sample {
  std::string prompt, continuation;
};

/// Continues each of log.sample_prompts by log.sample_tokens tokens at temperature 0.8. The seed
/// depends only on run.seed and the prompt's index. So the same model writes the same samples
/// again. An empty prompt begins after an end-of-document token.
std::vector<Sample> continue_prompts(models::GPT& model, const data::Tokenizer& tokenizer,
                                     const RunConfig& config);

}  // namespace dovetail::train
