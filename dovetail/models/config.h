#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/moe/config.h"

namespace dovetail {

/// A decoder-only transformer. The config of `preset` is where parsing starts, so a key that the
/// user gives wins over it.
struct ModelConfig {
  std::string preset = "tiny";
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;
  int64_t kv_heads = 0;   ///< 0: as many as heads
  int64_t head_dim = 0;   ///< 0: width / heads
  int64_t ffn_width = 0;  ///< 0: 4 * width, or 8/3 * width rounded up to 64 for swiglu
  int64_t context = 128;
  int64_t vocab_size = 0;        ///< 0: the tokenizer's, rounded up to a multiple of 64
  std::string norm = "rmsnorm";  ///< rmsnorm | layernorm
  double norm_eps = 1e-5;
  std::string activation = "swiglu";  ///< swiglu | gelu | relu2
  std::string positions = "rotary";   ///< rotary | learned
  double rotary_fraction = 1.0;       ///< of each head's elements, from the first
  double rotary_theta = 10000.0;
  bool bias = false;  ///< in every Linear but the head, and in LayerNorm
  bool tied = true;   ///< the head is the embedding
  double init_std = 0.02;
  moe::Config moe = {};
  void describe(Section& s);
};

/// tiny, gpt2-124m, llama-160m, llama-1b, nemotron-843m, nemotron-2b, nemotron-8b. All but tiny fix
/// the vocabulary, since their name counts it.
struct ModelPreset {
  const char* name;
  const char* help;
  ModelConfig config;
};
const std::vector<ModelPreset>& model_presets();
/// Throws UserError naming the nearest preset.
const ModelPreset& model_preset(const std::string& name);

/// Zeros (defaults that depend on other keys) resolved, everything checked (heads divide width,
/// ...). Throws UserError naming model.<key>. Resolving again changes nothing. `tokenizer_vocab`
/// may be 0 when vocab_size is given.
ModelConfig resolve_model_config(const ModelConfig& config, int64_t tokenizer_vocab);

/// Leading elements of each head that are rotated: 0 with learned positions. Of a resolved config.
int64_t rotary_dim(const ModelConfig& config);

}  // namespace dovetail
