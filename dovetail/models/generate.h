#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/models/gpt.h"

namespace dovetail {

struct GenerateOptions {
  int64_t max_tokens = 200;
  double temperature = 0.8;  ///< 0: the most likely token (the lowest id of equals)
  int64_t top_k = 0;         ///< only the k most likely tokens; 0: all
  double top_p = 1.0;        ///< only the most likely tokens that together reach this probability
                             ///< (Holtzman et al. 2020)
  uint64_t seed = 0;
  int32_t stop_token = -1;  ///< generation ends with it; -1: none
  int64_t vocab_size =
      0;  ///< ids from here on are never chosen (rows that only pad the embedding); 0: the model's
};

/// Continue `prompt` (token ids, at least one) token by token with a key-value cache; past the
/// model's context the oldest half of it is dropped and the rest is read again. Of a prompt longer
/// than the context its end is read. Returns the new tokens, the stop token included. `on_token` is
/// called for each new token; returning false stops. The same seed gives the same tokens.
std::vector<int32_t> generate(GPT& model, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token = {});

/// The choice of one token. logits (V), float32 on the CPU; `index` is the number of the draw under
/// options.seed.
int32_t sample_token(const at::Tensor& logits, const GenerateOptions& options, uint64_t index);

}  // namespace dovetail
