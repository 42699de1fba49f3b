#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Random numbers (draws) for routing. The draws of a token depend only on the key and on its index
/// first_token + row. So recomputing a block gives the same numbers, and so does any number of
/// ranks. Draws are float64 on the CPU.
namespace dovetail::moe {

/// Returns (tokens) draws, uniform in [0, 1).
at::Tensor uniform_draws(uint64_t key, int64_t first_token, int64_t tokens);

/// Returns (tokens, experts) draws from the standard normal distribution.
at::Tensor normal_draws(uint64_t key, int64_t first_token, int64_t tokens, int64_t experts);

/// Returns k different experts for each token, (T, k) int32 (hash layers, Roller et al. 2021). They
/// depend only on the key and the token's id. tokens: (T) int64 token ids on the CPU.
at::Tensor hash_choices(uint64_t key, const at::Tensor& tokens, int64_t experts, int64_t k);

}  // namespace dovetail::moe
