#pragma once

#include <string>
#include <vector>

#include "dovetail/data/text/tokenizer.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail {

struct Sample {
  std::string prompt, continuation;
};

/// log.sample_prompts, each continued by log.sample_tokens tokens at temperature 0.8, seeded by
/// run.seed and the prompt's position: the same model writes the same samples. An empty prompt
/// begins after an end of document.
std::vector<Sample> continue_prompts(GPT& model, const Tokenizer& tokenizer,
                                     const RunConfig& config);

}  // namespace dovetail
