#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/moe/config.h"

namespace dovetail::models {

/// Config section [model]: decoder-only transformer. A config file is parsed on top of the preset
/// that `preset` names, so keys in the file replace the preset's values.
struct ModelConfig {
  std::string preset = "tiny";
  int64_t layers = 4;   ///< transformer blocks
  int64_t width = 128;  ///< elements of a token's activation between blocks
  int64_t heads = 4;
  int64_t kv_heads = 0;  ///< heads of keys and values; 0: as many as heads
  int64_t head_dim = 0;  ///< elements of a head; 0: width / heads
  /// Hidden elements of a feed-forward. 0: 4 * width. With swiglu, 0 means 8/3 * width, rounded up
  /// to a multiple of 64.
  int64_t ffn_width = 0;
  int64_t context = 128;  ///< maximum number of tokens of a sequence
  /// Rows of the token embedding. 0: the tokenizer's size, rounded up to a multiple of 64.
  int64_t vocab_size = 0;
  std::string norm = "rmsnorm";  ///< rmsnorm | layernorm
  double norm_eps = 1e-5;
  std::string activation = "swiglu";  ///< swiglu | gelu | relu2
  std::string positions = "rotary";   ///< rotary | learned
  double rotary_fraction = 1.0;  ///< fraction of each head that is rotated, from its first element
  double rotary_theta = 10000.0;
  bool bias = false;       ///< biases in every Linear except the head, and in LayerNorm
  bool tied = true;        ///< the head (output projection) uses the token embedding's matrix
  double init_std = 0.02;  ///< standard deviation of initial weights
  moe::Config moe = {};
  void describe(Section& s);
};

/// Named config. The presets are tiny, gpt2-124m, llama-160m, llama-1b, nemotron-843m, nemotron-2b
/// and nemotron-8b. All except tiny set vocab_size, since their parameter counts include the
/// vocabulary.
struct ModelPreset {
  const char* name;
  const char* help;  ///< description of the model in a few words
  ModelConfig config;
};
const std::vector<ModelPreset>& model_presets();
/// Returns the preset called `name`. If there is none, throws UserError that names the nearest
/// preset.
const ModelPreset& model_preset(const std::string& name);

/// Returns the resolved config: zeros are replaced by the defaults that the members describe.
/// Checks all values (heads divide width, ...). Throws UserError that names model.<key>. Resolving
/// a config a second time changes nothing. `tokenizer_vocab` is the number of tokens of the
/// tokenizer. It may be 0 if config.vocab_size is not 0.
ModelConfig resolve_model_config(const ModelConfig& config, int64_t tokenizer_vocab);

/// Returns the number of leading elements of each head that rotary positions rotate; 0 with learned
/// positions. `config` must be resolved.
int64_t rotary_dim(const ModelConfig& config);

}  // namespace dovetail::models
