#include "dovetail/models/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::models {
namespace {

// Vocabularies are rounded up to multiples of this, so that the head's GEMM has no ragged edge.
constexpr int64_t kVocabMultiple = 64;
constexpr int64_t kFfnMultiple = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

ModelConfig gpt2_124m() {
  ModelConfig c;
  c.preset = "gpt2-124m";
  c.layers = 12;
  c.width = 768;
  c.heads = 12;
  c.context = 1024;
  c.vocab_size = 50304;
  c.norm = "layernorm";
  c.activation = "gelu";
  c.positions = "learned";
  c.bias = true;
  return c;
}

ModelConfig llama_160m() {
  ModelConfig c;
  c.preset = "llama-160m";
  c.layers = 12;
  c.width = 768;
  c.heads = 12;
  c.kv_heads = 4;
  c.ffn_width = 3328;
  c.context = 1024;
  c.vocab_size = 32000;
  c.tied = false;
  return c;
}

ModelConfig llama_1b() {
  ModelConfig c;
  c.preset = "llama-1b";
  c.layers = 16;
  c.width = 2048;
  c.heads = 32;
  c.kv_heads = 8;
  c.ffn_width = 8192;
  c.context = 2048;
  c.vocab_size = 128256;
  c.rotary_theta = 500000;
  return c;
}

struct NemotronSizes {
  const char* name;
  int64_t layers, width, heads, kv_heads, ffn_width;
};

// Squared ReLU, no biases, half of each head rotated, untied (Parmar et al. 2024). RMSNorm and the
// vocabulary of 131,072 are from Nemotron-H (arXiv 2504.03624). arXiv 2506.08027 pre-trains its
// transformer of 8B.
ModelConfig nemotron(const NemotronSizes& sizes) {
  ModelConfig c;
  c.preset = sizes.name;
  c.layers = sizes.layers;
  c.width = sizes.width;
  c.heads = sizes.heads;
  c.kv_heads = sizes.kv_heads;
  c.head_dim = 128;
  c.ffn_width = sizes.ffn_width;
  c.context = 8192;
  c.vocab_size = 131072;
  c.activation = "relu2";
  c.rotary_fraction = 0.5;
  c.tied = false;
  return c;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : model_presets()) names.emplace_back(preset.name);
  return names;
}

const std::vector<std::string> kNorms = {"rmsnorm", "layernorm"};
const std::vector<std::string> kActivations = {"swiglu", "gelu", "relu2"};
const std::vector<std::string> kPositions = {"rotary", "learned"};

void check_choice(const char* key, const std::string& value,
                  const std::vector<std::string>& choices) {
  for (const auto& choice : choices) {
    if (value == choice) return;
  }
  throw UserError(
      fmt::format("model.{} = \"{}\" is not one of {}", key, value, fmt::join(choices, ", ")));
}

// Checks values. The schema checks the ranges of parsed values only, not of configs from C++ or
// from a config.json.
void check_values(const ModelConfig& c) {
  const std::pair<const char*, int64_t> positive[] = {
      {"layers", c.layers}, {"width", c.width}, {"heads", c.heads}, {"context", c.context}};
  for (const auto& [key, value] : positive)
    user_check(value > 0, "model.{} = {} must be at least 1", key, value);
  const std::pair<const char*, int64_t> optional[] = {{"kv_heads", c.kv_heads},
                                                      {"head_dim", c.head_dim},
                                                      {"ffn_width", c.ffn_width},
                                                      {"vocab_size", c.vocab_size}};
  for (const auto& [key, value] : optional)
    user_check(value >= 0, "model.{} = {} must not be negative", key, value);
  const std::pair<const char*, double> real[] = {
      {"norm_eps", c.norm_eps}, {"rotary_theta", c.rotary_theta}, {"init_std", c.init_std}};
  for (const auto& [key, value] : real) {
    user_check(value > 0 && std::isfinite(value), "model.{} = {} must be a positive number", key,
               value);
  }
  user_check(c.rotary_fraction > 0 && c.rotary_fraction <= 1,
             "model.rotary_fraction = {} must be above 0 and at most 1", c.rotary_fraction);
  check_choice("norm", c.norm, kNorms);
  check_choice("activation", c.activation, kActivations);
  check_choice("positions", c.positions, kPositions);
}

void check_rotary(const ModelConfig& c) {
  if (c.positions == "learned") {
    const ModelConfig defaults, preset = model_preset(c.preset).config;
    const auto usual = [&](double ModelConfig::* key) {
      return c.*key == defaults.*key || c.*key == preset.*key;
    };
    user_check(usual(&ModelConfig::rotary_fraction) && usual(&ModelConfig::rotary_theta),
               "model.rotary_fraction = {} and model.rotary_theta = {} do nothing with "
               "model.positions = \"learned\"; leave them out or use positions = \"rotary\"",
               c.rotary_fraction, c.rotary_theta);
    return;
  }
  const double elements = c.rotary_fraction * static_cast<double>(c.head_dim);
  user_check(elements == 2.0 * std::floor(elements / 2),
             "model.rotary_fraction = {} of model.head_dim = {} is {} elements; rotation needs an "
             "even whole number",
             c.rotary_fraction, c.head_dim, elements);
}

void resolve_vocab(ModelConfig& c, int64_t tokenizer_vocab) {
  if (c.vocab_size == 0) {
    user_check(
        tokenizer_vocab > 0,
        "model.vocab_size = 0 takes the tokenizer's, but there is no tokenizer; give a number");
    c.vocab_size = round_up(tokenizer_vocab, kVocabMultiple);
  }
  user_check(c.vocab_size >= tokenizer_vocab,
             "model.vocab_size = {} is less than the tokenizer's {} tokens. For a new model use 0 "
             "to take the tokenizer's, rounded up to a multiple of {}. A model with weights keeps "
             "its size and needs the tokenizer that it was trained with",
             c.vocab_size, tokenizer_vocab, kVocabMultiple);
}

}  // namespace

void ModelConfig::describe(Section& s) {
  s.value("preset", preset,
          "Model that gives the defaults of the other keys. A key that is given too takes priority")
      .choices(preset_names());
  s.value("layers", layers, "Transformer blocks").range(1, 10000);
  s.value("width", width, "Elements of the residual stream").range(1, 1 << 20);
  s.value("heads", heads, "Query heads").range(1, 1 << 16);
  s.value("kv_heads", kv_heads,
          "Key and value heads (grouped-query attention), a divisor of heads; 0: as many as heads")
      .range(0, 1 << 16);
  s.value("head_dim", head_dim, "Elements of a head; 0: width / heads").range(0, 1 << 16);
  s.value("ffn_width", ffn_width,
          "Hidden elements of the feed-forward. 0: 4 * width, or for swiglu 8/3 * width rounded up "
          "to a multiple of 64")
      .range(0, 1 << 24);
  s.value("context", context, "Maximum length of a sequence").range(1, 1 << 24).unit("tokens");
  s.value("vocab_size", vocab_size,
          "Rows of the embedding; 0: vocabulary of the tokenizer, rounded up to a multiple of 64")
      .range(0, 1 << 28)
      .unit("tokens");
  s.value("norm", norm, "Normalisation before attention, feed-forward and head").choices(kNorms);
  s.value("norm_eps", norm_eps, "Added to the variance (layernorm) or mean square (rmsnorm)")
      .above(0);
  s.value("activation", activation,
          "Feed-forward: swiglu (gated), gelu (tanh form) or relu2 (squared ReLU)")
      .choices(kActivations);
  s.value("positions", positions,
          "Rotary positions in attention, or a learned embedding added at the input")
      .choices(kPositions);
  s.value("rotary_fraction", rotary_fraction,
          "Fraction of each head that is rotated, from its first element")
      .range(0, 1);
  s.value("rotary_theta", rotary_theta, "Base of the rotary frequencies").above(0);
  s.value("bias", bias, "Add biases to layernorm and to each Linear except the head");
  s.value("tied", tied, "Use the embedding's matrix as the head");
  s.value("init_std", init_std,
          "Standard deviation of initial matrices. Projections into the residual stream use "
          "init_std / sqrt(2 * layers)")
      .above(0);
  s.section("moe", moe, "Mixture of experts in place of feed-forwards");
}

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> presets = {
      {"tiny", "4 x 128, for trying things out", ModelConfig{}},
      {"gpt2-124m", "GPT-2 small (Radford et al. 2019), vocabulary padded to 50,304", gpt2_124m()},
      {"llama-160m", "Llama-style, 12 x 768, grouped-query attention, untied", llama_160m()},
      {"llama-1b", "The sizes of Llama 3.2 1B, 2,048 tokens of context", llama_1b()},
      {"nemotron-843m", "Nemotron-style, 16 x 1536",
       nemotron({"nemotron-843m", 16, 1536, 12, 4, 6912})},
      {"nemotron-2b", "Nemotron-style, 28 x 2048",
       nemotron({"nemotron-2b", 28, 2048, 16, 8, 9728})},
      {"nemotron-8b", "Nemotron-style, 32 x 4096",
       nemotron({"nemotron-8b", 32, 4096, 32, 8, 21504})},
  };
  return presets;
}

const ModelPreset& model_preset(const std::string& name) {
  for (const auto& preset : model_presets()) {
    if (name == preset.name) return preset;
  }
  const auto near = nearest_word(name, preset_names());
  throw UserError(
      fmt::format("model.preset = \"{}\" is not one of {}", name, fmt::join(preset_names(), ", ")),
      near.empty() ? "" : fmt::format("did you mean \"{}\"?", near));
}

ModelConfig resolve_model_config(const ModelConfig& config, int64_t tokenizer_vocab) {
  ModelConfig c = config;
  check_values(c);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  user_check(c.heads % c.kv_heads == 0, "model.heads = {} is not a multiple of model.kv_heads = {}",
             c.heads, c.kv_heads);
  if (c.head_dim == 0) {
    user_check(
        c.width % c.heads == 0,
        "model.width = {} is not a multiple of model.heads = {}; change one or give model.head_dim",
        c.width, c.heads);
    c.head_dim = c.width / c.heads;
  }
  check_rotary(c);
  if (c.ffn_width == 0) {
    c.ffn_width =
        c.activation == "swiglu" ? round_up((8 * c.width + 2) / 3, kFfnMultiple) : 4 * c.width;
  }
  c.moe = moe::resolve(c.moe, c.ffn_width);
  user_check(c.moe.every <= c.layers || c.moe.experts == 0,
             "model.moe.every = {} leaves none of the {} blocks with experts", c.moe.every,
             c.layers);
  resolve_vocab(c, tokenizer_vocab);
  return c;
}

int64_t rotary_dim(const ModelConfig& config) {
  if (config.positions != "rotary") return 0;
  return static_cast<int64_t>(config.rotary_fraction * static_cast<double>(config.head_dim));
}

}  // namespace dovetail::models
