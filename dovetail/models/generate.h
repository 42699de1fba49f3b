#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/models/gpt.h"

namespace dovetail::models {

struct GenerateOptions {
  int64_t max_tokens = 200;  ///< maximum number of new tokens
  double temperature = 0.8;  ///< 0: the most likely token; among equals, the lowest id
  int64_t top_k = 0;         ///< choose among the k most likely tokens; 0: all
  /// Choose among the fewest most likely tokens that together reach this probability (Holtzman et
  /// al. 2020).
  double top_p = 1.0;
  uint64_t seed = 0;
  int32_t stop_token = -1;  ///< generation ends with this token; -1: none
  /// Ids from this one on are never chosen, since they only pad the embedding and stand for no
  /// token. 0: the model's vocab_size, so all ids may be chosen.
  int64_t vocab_size = 0;
};

/// Continues `prompt` (token ids, at least one) token by token with a key-value cache. If the
/// prompt is longer than the model's context, uses only its end. When the context is full, drops
/// the older half of the tokens. The model then reads the newer half again to fill the cache. Calls
/// `on_token` for each new token, and stops if `on_token` returns false. Returns the new tokens,
/// including the stop token. The same seed gives the same tokens.
std::vector<int32_t> generate(GPT& model, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token = {});

/// Chooses one token by the logits and `options`. `logits`: one for each token id, (vocabulary)
/// float32, contiguous, on the CPU. The random number depends on options.seed and `index`, the
/// number of the new token from 0.
int32_t sample_token(const at::Tensor& logits, const GenerateOptions& options, uint64_t index);

}  // namespace dovetail::models
