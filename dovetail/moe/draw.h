#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Random numbers of routing. That of a token is a function of the key and the token's index alone:
/// the same when a block is computed again, and on any number of ranks. All float64 on the CPU.
namespace dovetail::moe {

/// (tokens) uniform in [0, 1).
at::Tensor uniform_draws(uint64_t key, int64_t first_token, int64_t tokens);

/// (tokens, experts) standard normal.
at::Tensor normal_draws(uint64_t key, int64_t first_token, int64_t tokens, int64_t experts);

/// (T, k) int32: for each of `tokens` (T) int64 on the CPU its k experts, different ones, which are
/// a function of the key and the id alone (hash layers, Roller et al. 2021).
at::Tensor hash_choices(uint64_t key, const at::Tensor& tokens, int64_t experts, int64_t k);

}  // namespace dovetail::moe
