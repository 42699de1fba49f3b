#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/moe/config.h"

namespace dovetail::models {

/// Config of a decoder-only transformer. Parsing starts from the config of `preset`. A key that the
/// user gives therefore takes priority.
struct ModelConfig {
  std::string preset = "tiny";
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;
  int64_t kv_heads = 0;   ///< 0: as many as heads
  int64_t head_dim = 0;   ///< 0: width / heads
  int64_t ffn_width = 0;  ///< 0: 4 * width, or 8/3 * width rounded up to 64 for swiglu
  int64_t context = 128;
  int64_t vocab_size = 0;        ///< 0: the tokenizer's size, rounded up to a multiple of 64
  std::string norm = "rmsnorm";  ///< rmsnorm | layernorm
  double norm_eps = 1e-5;
  std::string activation = "swiglu";  ///< swiglu | gelu | relu2
  std::string positions = "rotary";   ///< rotary | learned
  double rotary_fraction = 1.0;  ///< fraction of each head that is rotated, from its first element
  double rotary_theta = 10000.0;
  bool bias = false;  ///< in every Linear except the head, and in LayerNorm
  bool tied = true;   ///< the head uses the embedding's matrix
  double init_std = 0.02;
  moe::Config moe = {};
  void describe(Section& s);
};

/// Named sizes of a model: tiny, gpt2-124m, llama-160m, llama-1b, nemotron-843m, nemotron-2b,
/// nemotron-8b. All except tiny fix the vocabulary, since their parameter counts include it.
struct ModelPreset {
  const char* name;
  const char* help;
  ModelConfig config;
};
const std::vector<ModelPreset>& model_presets();
/// Returns the preset of that name. Throws UserError that names the nearest preset.
const ModelPreset& model_preset(const std::string& name);

/// Returns `config` with zeros replaced by the defaults that depend on other keys. Checks all
/// values (heads divide width, ...). Throws UserError that names model.<key>. Resolving a second
/// time changes nothing. `tokenizer_vocab` may be 0 if vocab_size is given.
ModelConfig resolve_model_config(const ModelConfig& config, int64_t tokenizer_vocab);

/// Returns the number of leading elements of each head that are rotated: 0 with learned positions.
/// `config` must be resolved.
int64_t rotary_dim(const ModelConfig& config);

}  // namespace dovetail::models
