#include "dovetail/train/gpt/text_samples.h"

#include <cstdint>

#include "dovetail/base/rng.h"
#include "dovetail/data/files/utf8.h"
#include "dovetail/models/generate.h"

namespace dovetail::train {

std::vector<Sample> continue_prompts(models::GPT& model, const data::Tokenizer& tokenizer,
                                     const RunConfig& config) {
  std::vector<Sample> samples;
  for (const std::string& prompt : config.log.sample_prompts) {
    std::vector<int32_t> tokens = tokenizer.encode(prompt);
    if (tokens.empty())
      tokens.push_back(tokenizer.end_of_document() >= 0 ? tokenizer.end_of_document() : 0);
    const models::GenerateOptions options = {
        .max_tokens = config.log.sample_tokens,
        .seed = mix_seed(static_cast<uint64_t>(config.run.seed), samples.size()),
        .stop_token = tokenizer.end_of_document(),
        .vocab_size = tokenizer.vocab_size()};
    std::vector<int32_t> added = generate(model, tokens, options);
    if (!added.empty() && added.back() == options.stop_token) added.pop_back();
    samples.push_back({prompt, data::replace_invalid_utf8(tokenizer.decode(added))});
  }
  return samples;
}

}  // namespace dovetail::train
