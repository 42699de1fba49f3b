#include "dovetail/models/huggingface_layout.h"

#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/models/gpt.h"

namespace dovetail {
namespace {

using Json = nlohmann::json;

/// The first key of `config` that the architecture cannot express with what it would have to be; empty when there is
/// none.
std::string llama_obstacle(const ModelConfig& c) {
  if (c.norm != "rmsnorm") return "model.norm = \"" + c.norm + "\" (it has rmsnorm)";
  if (c.activation != "swiglu") return "model.activation = \"" + c.activation + "\" (it has swiglu)";
  if (c.positions != "rotary") return "model.positions = \"" + c.positions + "\" (it has rotary)";
  if (c.rotary_fraction != 1) return fmt::format("model.rotary_fraction = {} (it has 1)", c.rotary_fraction);
  if (c.bias) return "model.bias = true (it has false)";
  if (c.moe.experts > 0) return fmt::format("model.moe.experts = {} (it has none)", c.moe.experts);
  return {};
}

std::string gpt2_obstacle(const ModelConfig& c) {
  if (c.norm != "layernorm") return "model.norm = \"" + c.norm + "\" (it has layernorm)";
  if (c.activation != "gelu") return "model.activation = \"" + c.activation + "\" (it has gelu)";
  if (c.positions != "learned") return "model.positions = \"" + c.positions + "\" (it has learned)";
  if (!c.bias) return "model.bias = false (it has true)";
  if (c.moe.experts > 0) return fmt::format("model.moe.experts = {} (it has none)", c.moe.experts);
  if (!c.tied) return "model.tied = false (it has true)";
  if (c.kv_heads != c.heads) return fmt::format("model.kv_heads = {} (it has as many as heads)", c.kv_heads);
  if (c.heads * c.head_dim != c.width) return fmt::format("model.head_dim = {} (it has width / heads)", c.head_dim);
  return {};
}

std::vector<TensorLayout> llama_tensors(const ModelConfig& c) {
  std::vector<TensorLayout> tensors = {{"embed.weight", {{"model.embed_tokens.weight", c.vocab_size}}}};
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto ours = fmt::format("blocks.{}.", i), theirs = fmt::format("model.layers.{}.", i);
    tensors.push_back({ours + "attention_norm.weight", {{theirs + "input_layernorm.weight", c.width}}});
    tensors.push_back({ours + "attention.qkv.weight",
                       {{theirs + "self_attn.q_proj.weight", c.heads * c.head_dim},
                        {theirs + "self_attn.k_proj.weight", c.kv_heads * c.head_dim},
                        {theirs + "self_attn.v_proj.weight", c.kv_heads * c.head_dim}}});
    tensors.push_back({ours + "attention.out.weight", {{theirs + "self_attn.o_proj.weight", c.width}}});
    tensors.push_back({ours + "ffn_norm.weight", {{theirs + "post_attention_layernorm.weight", c.width}}});
    tensors.push_back({ours + "ffn.up.weight",
                       {{theirs + "mlp.gate_proj.weight", c.ffn_width}, {theirs + "mlp.up_proj.weight", c.ffn_width}}});
    tensors.push_back({ours + "ffn.down.weight", {{theirs + "mlp.down_proj.weight", c.width}}});
  }
  tensors.push_back({"norm.weight", {{"model.norm.weight", c.width}}});
  if (!c.tied) tensors.push_back({"head.weight", {{"lm_head.weight", c.vocab_size}}});
  return tensors;
}

std::vector<TensorLayout> gpt2_tensors(const ModelConfig& c) {
  std::vector<TensorLayout> tensors = {{"embed.weight", {{"transformer.wte.weight", c.vocab_size}}},
                                       {"positions.weight", {{"transformer.wpe.weight", c.context}}}};
  // GPT-2 stores its Linear weights (in, out).
  const auto add = [&](const std::string& ours, const std::string& theirs, int64_t rows, bool transposed) {
    tensors.push_back({ours + ".weight", {{theirs + ".weight", rows}}, transposed});
    tensors.push_back({ours + ".bias", {{theirs + ".bias", rows}}});
  };
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto ours = fmt::format("blocks.{}.", i), theirs = fmt::format("transformer.h.{}.", i);
    add(ours + "attention_norm", theirs + "ln_1", c.width, false);
    add(ours + "attention.qkv", theirs + "attn.c_attn", 3 * c.width, true);
    add(ours + "attention.out", theirs + "attn.c_proj", c.width, true);
    add(ours + "ffn_norm", theirs + "ln_2", c.width, false);
    add(ours + "ffn.up", theirs + "mlp.c_fc", c.ffn_width, true);
    add(ours + "ffn.down", theirs + "mlp.c_proj", c.width, true);
  }
  add("norm", "transformer.ln_f", c.width, false);
  return tensors;
}

/// Reads keys of a config.json; every complaint names the key.
class ConfigReader {
 public:
  explicit ConfigReader(const Json& json, std::string prefix = {}) : json_(json), prefix_(std::move(prefix)) {
    user_check(json.is_object(), "{} is not a JSON object", prefix_.empty() ? "it" : prefix_);
  }

  bool has(const std::string& key) const { return json_.contains(key) && !json_[key].is_null(); }

  template <class T>
  T get(const std::string& key) const {
    user_check(has(key), "{}{} is missing", prefix_, key);
    const auto& value = json_[key];
    bool fits = value.is_string();
    if constexpr (std::is_same_v<T, bool>) {
      fits = value.is_boolean();
    } else if constexpr (std::is_same_v<T, int64_t>) {
      fits = value.is_number_integer();
    } else if constexpr (std::is_same_v<T, double>) {
      fits = value.is_number();
    }
    user_check(fits, "{}{} = {} has the wrong type", prefix_, key, value.dump());
    return value.get<T>();
  }

  template <class T>
  T get(const std::string& key, T absent) const {
    return has(key) ? get<T>(key) : absent;
  }

  /// Refuses a feature that we do not have, unless it is switched to `supported`.
  template <class T>
  void require(const std::string& key, const T& supported) const {
    if (!has(key)) return;
    user_check(get<T>(key) == supported, "{}{} = {} is not supported, only {}", prefix_, key, json_[key].dump(),
               Json(supported).dump());
  }

  ConfigReader section(const std::string& key) const { return ConfigReader(json_[key], prefix_ + key + "."); }

 private:
  const Json& json_;
  std::string prefix_;
};

/// transformers 5 has rope_parameters; before it were rope_theta and rope_scaling.
double read_rope_theta(const ConfigReader& reader) {
  double theta = reader.get<double>("rope_theta", 10000.0);
  for (const auto* key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.has(key)) continue;
    const auto rope = reader.section(key);
    rope.require<std::string>("rope_type", "default");
    rope.require<std::string>("type", "default");
    rope.require<double>("partial_rotary_factor", 1.0);
    theta = rope.get<double>("rope_theta", theta);
  }
  return theta;
}

ModelConfig read_llama(const ConfigReader& reader) {
  reader.require<std::string>("hidden_act", "silu");
  reader.require<bool>("attention_bias", false);
  reader.require<bool>("mlp_bias", false);
  ModelConfig c;
  c.layers = reader.get<int64_t>("num_hidden_layers");
  c.width = reader.get<int64_t>("hidden_size");
  c.heads = reader.get<int64_t>("num_attention_heads");
  c.kv_heads = reader.get<int64_t>("num_key_value_heads", 0);
  c.head_dim = reader.get<int64_t>("head_dim", 0);
  c.ffn_width = reader.get<int64_t>("intermediate_size");
  c.context = reader.get<int64_t>("max_position_embeddings");
  c.vocab_size = reader.get<int64_t>("vocab_size");
  c.norm_eps = reader.get<double>("rms_norm_eps");
  c.rotary_theta = read_rope_theta(reader);
  c.tied = reader.get<bool>("tie_word_embeddings", false);
  c.init_std = reader.get<double>("initializer_range", c.init_std);
  return c;
}

ModelConfig read_gpt2(const ConfigReader& reader) {
  reader.require<std::string>("activation_function", "gelu_new");
  reader.require<bool>("scale_attn_weights", true);
  reader.require<bool>("scale_attn_by_inverse_layer_idx", false);
  reader.require<bool>("add_cross_attention", false);
  reader.require<bool>("tie_word_embeddings", true);
  ModelConfig c;
  c.layers = reader.get<int64_t>("n_layer");
  c.width = reader.get<int64_t>("n_embd");
  c.heads = reader.get<int64_t>("n_head");
  c.ffn_width = reader.get<int64_t>("n_inner", 0);
  c.context = reader.get<int64_t>("n_positions");
  c.vocab_size = reader.get<int64_t>("vocab_size");
  c.norm = "layernorm";
  c.norm_eps = reader.get<double>("layer_norm_epsilon");
  c.activation = "gelu";
  c.positions = "learned";
  c.bias = true;
  c.init_std = reader.get<double>("initializer_range", c.init_std);
  return c;
}

}  // namespace

HuggingfaceArchitecture huggingface_architecture(const ModelConfig& config) {
  const auto llama = llama_obstacle(config), gpt2 = gpt2_obstacle(config);
  if (llama.empty()) return HuggingfaceArchitecture::kLlama;
  if (gpt2.empty()) return HuggingfaceArchitecture::kGpt2;
  throw UserError(
      fmt::format("Hugging Face's architectures cannot express this model: llama not {}, gpt2 not {}", llama, gpt2),
      "use the checkpoint itself, or train with the sizes of a llama or gpt2 preset");
}

std::vector<TensorLayout> huggingface_tensors(HuggingfaceArchitecture architecture, const ModelConfig& config) {
  return architecture == HuggingfaceArchitecture::kLlama ? llama_tensors(config) : gpt2_tensors(config);
}

Json to_huggingface_config(HuggingfaceArchitecture architecture, const ModelConfig& c) {
  if (architecture == HuggingfaceArchitecture::kGpt2) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"activation_function", "gelu_new"},
            {"n_layer", c.layers},
            {"n_embd", c.width},
            {"n_head", c.heads},
            {"n_inner", c.ffn_width},
            {"n_positions", c.context},
            {"n_ctx", c.context},
            {"vocab_size", c.vocab_size},
            {"layer_norm_epsilon", c.norm_eps},
            {"initializer_range", c.init_std},
            {"tie_word_embeddings", true},
            {"attn_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"resid_pdrop", 0.0},
            {"torch_dtype", "float32"}};
  }
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"num_hidden_layers", c.layers},
          {"hidden_size", c.width},
          {"num_attention_heads", c.heads},
          {"num_key_value_heads", c.kv_heads},
          {"head_dim", c.head_dim},
          {"intermediate_size", c.ffn_width},
          {"max_position_embeddings", c.context},
          {"vocab_size", c.vocab_size},
          {"rms_norm_eps", c.norm_eps},
          {"rope_theta", c.rotary_theta},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", c.rotary_theta}}},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", c.tied},
          {"initializer_range", c.init_std},
          {"torch_dtype", "float32"}};
}

HuggingfaceModel from_huggingface_config(const Json& json, const std::string& name) {
  try {
    const ConfigReader reader(json);
    const auto type = reader.get<std::string>("model_type");
    if (type == "llama") return {HuggingfaceArchitecture::kLlama, resolve_model_config(read_llama(reader), 0)};
    if (type == "gpt2") return {HuggingfaceArchitecture::kGpt2, resolve_model_config(read_gpt2(reader), 0)};
    throw UserError(fmt::format("model_type = \"{}\" is not supported, only \"llama\" and \"gpt2\"", type));
  } catch (const UserError& error) {
    throw UserError(error.what(), error.help(), name);
  }
}

}  // namespace dovetail
