#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/models/gpt.h"

namespace dovetail {

struct GenerateOptions {
  int64_t max_tokens = 200;
  double temperature = 0.8;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< 0: all
  double top_p = 1.0;
  uint64_t seed = 0;
  int32_t stop_token = -1;
};

/// Continue `prompt` (token ids, at least one) token by token with a key-value cache; past the model's context the oldest half of it is
/// dropped and the rest is read again. `on_token` is called for each new token; returning false stops.
std::vector<int32_t> generate(GPT& model, const std::vector<int32_t>& prompt, const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token = {});

}  // namespace dovetail
