#include "dovetail/models/huggingface_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/schema.h"
#include "dovetail/models/gpt.h"

namespace dovetail::models {
namespace {

using Json = nlohmann::json;

/// Returns the first key of `config` that the architecture cannot express, and the value that it
/// needs. Empty if there is no such key.
std::string llama_like_obstacle(const ModelConfig& c) {
  if (c.norm != "rmsnorm") return "model.norm = \"" + c.norm + "\" (it has rmsnorm)";
  if (c.activation != "swiglu")
    return "model.activation = \"" + c.activation + "\" (it has swiglu)";
  if (c.positions != "rotary") return "model.positions = \"" + c.positions + "\" (it has rotary)";
  if (c.rotary_fraction != 1)
    return fmt::format("model.rotary_fraction = {} (it has 1)", c.rotary_fraction);
  if (c.bias) return "model.bias = true (it has false)";
  return {};
}

std::string llama_obstacle(const ModelConfig& c) {
  if (c.moe.experts > 0) return fmt::format("model.moe.experts = {} (it has none)", c.moe.experts);
  return llama_like_obstacle(c);
}

std::string mixtral_obstacle(const ModelConfig& c) {
  const moe::Config& m = c.moe;
  if (m.experts == 0) return "model.moe.experts = 0 (it has some)";
  if (m.router != "top_k") return "model.moe.router = \"" + m.router + "\" (it has top_k)";
  if (m.score != "softmax") return "model.moe.score = \"" + m.score + "\" (it has softmax)";
  if (m.normalize != "before" || m.k == 1)
    return fmt::format("model.moe.normalize = \"{}\" with k = {} (its weights add to 1)",
                       m.normalize, m.k);
  if (m.scale != 1) return fmt::format("model.moe.scale = {} (it has 1)", m.scale);
  if (m.num_groups != 1) return fmt::format("model.moe.num_groups = {} (it has 1)", m.num_groups);
  if (m.shared_experts > 0)
    return fmt::format("model.moe.shared_experts = {} (it has none)", m.shared_experts);
  if (m.every != 1) return fmt::format("model.moe.every = {} (it has 1)", m.every);
  if (m.bias_update_rate > 0)
    return fmt::format("model.moe.bias_update_rate = {} (it has none)", m.bias_update_rate);
  if (m.second_expert != "always")
    return "model.moe.second_expert = \"" + m.second_expert + "\" (it has always)";
  return llama_like_obstacle(c);
}

std::string gpt2_obstacle(const ModelConfig& c) {
  if (c.norm != "layernorm") return "model.norm = \"" + c.norm + "\" (it has layernorm)";
  if (c.activation != "gelu") return "model.activation = \"" + c.activation + "\" (it has gelu)";
  if (c.positions != "learned") return "model.positions = \"" + c.positions + "\" (it has learned)";
  if (!c.bias) return "model.bias = false (it has true)";
  if (c.moe.experts > 0) return fmt::format("model.moe.experts = {} (it has none)", c.moe.experts);
  if (c.kv_heads != c.heads)
    return fmt::format("model.kv_heads = {} (it has as many as heads)", c.kv_heads);
  if (c.heads * c.head_dim != c.width)
    return fmt::format("model.head_dim = {} (it has width / heads)", c.head_dim);
  return {};
}

using Visit = std::function<void(const TensorLayout&)>;

/// Visits the tensors of Llama, or of Mixtral if there are experts. Mixtral has experts instead of
/// the feed-forward.
void visit_llama(const ModelConfig& c, const Visit& visit) {
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  visit({"embed.weight", {{"model.embed_tokens.weight", c.vocab_size}}, c.width});
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto ours = fmt::format("blocks.{}.", i), theirs = fmt::format("model.layers.{}.", i);
    visit({ours + "attention_norm.weight", {{theirs + "input_layernorm.weight", c.width}}});
    visit({ours + "attention.qkv.weight",
           {{theirs + "self_attn.q_proj.weight", q_width},
            {theirs + "self_attn.k_proj.weight", kv_width},
            {theirs + "self_attn.v_proj.weight", kv_width}},
           c.width});
    visit(
        {ours + "attention.out.weight", {{theirs + "self_attn.o_proj.weight", c.width}}, q_width});
    visit({ours + "ffn_norm.weight", {{theirs + "post_attention_layernorm.weight", c.width}}});
    if (c.moe.experts == 0) {
      visit({ours + "ffn.up.weight",
             {{theirs + "mlp.gate_proj.weight", c.ffn_width},
              {theirs + "mlp.up_proj.weight", c.ffn_width}},
             c.width});
      visit({ours + "ffn.down.weight", {{theirs + "mlp.down_proj.weight", c.width}}, c.ffn_width});
      continue;
    }
    visit({ours + "moe.router.weight",
           {{theirs + "block_sparse_moe.gate.weight", c.moe.experts}},
           c.width});
    for (int64_t e = 0; e < c.moe.experts; ++e) {
      const auto our_expert = fmt::format("{}moe.experts.{}.", ours, e),
                 their_expert = fmt::format("{}block_sparse_moe.experts.{}.", theirs, e);
      visit({our_expert + "up.weight",
             {{their_expert + "w1.weight", c.moe.ffn_width},
              {their_expert + "w3.weight", c.moe.ffn_width}},
             c.width});
      visit({our_expert + "down.weight", {{their_expert + "w2.weight", c.width}}, c.moe.ffn_width});
    }
  }
  visit({"norm.weight", {{"model.norm.weight", c.width}}});
  if (!c.tied) visit({"head.weight", {{"lm_head.weight", c.vocab_size}}, c.width});
}

void visit_gpt2(const ModelConfig& c, const Visit& visit) {
  visit({"embed.weight", {{"transformer.wte.weight", c.vocab_size}}, c.width});
  visit({"positions.weight", {{"transformer.wpe.weight", c.context}}, c.width});
  const auto add_norm = [&](const std::string& ours, const std::string& theirs) {
    visit({ours + ".weight", {{theirs + ".weight", c.width}}});
    visit({ours + ".bias", {{theirs + ".bias", c.width}}});
  };
  // GPT-2 stores its Linear weights as (in, out).
  const auto add_linear = [&](const std::string& ours, const std::string& theirs, int64_t in,
                              int64_t out) {
    visit({ours + ".weight", {{theirs + ".weight", out}}, in, true});
    visit({ours + ".bias", {{theirs + ".bias", out}}});
  };
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto ours = fmt::format("blocks.{}.", i), theirs = fmt::format("transformer.h.{}.", i);
    add_norm(ours + "attention_norm", theirs + "ln_1");
    add_linear(ours + "attention.qkv", theirs + "attn.c_attn", c.width, 3 * c.width);
    add_linear(ours + "attention.out", theirs + "attn.c_proj", c.width, c.width);
    add_norm(ours + "ffn_norm", theirs + "ln_2");
    add_linear(ours + "ffn.up", theirs + "mlp.c_fc", c.width, c.ffn_width);
    add_linear(ours + "ffn.down", theirs + "mlp.c_proj", c.ffn_width, c.width);
  }
  add_norm("norm", "transformer.ln_f");
  if (!c.tied) visit({"head.weight", {{"lm_head.weight", c.vocab_size}}, c.width});
}

/// Reads keys of a config.json. Every error names the key.
class ConfigReader {
 public:
  explicit ConfigReader(const Json& json, std::string prefix = {})
      : json_(json), prefix_(std::move(prefix)) {
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
      fits = value.is_number_integer() &&
             (!value.is_number_unsigned() || std::in_range<int64_t>(value.get<uint64_t>()));
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

  /// Rejects a feature that Dovetail does not have, unless it has a `supported` value.
  template <class T>
  void require(const std::string& key, std::initializer_list<T> supported) const {
    if (!has(key)) return;
    const Json values = std::vector<T>(supported);
    user_check(std::ranges::find(supported, get<T>(key)) != supported.end(),
               "{}{} = {} is not supported, only {}", prefix_, key, json_[key].dump(),
               values.size() == 1 ? values[0].dump() : values.dump());
  }

  void refuse(const std::string& key, const std::string& help = {}) const {
    if (has(key))
      throw UserError(
          fmt::format("{}{} = {} is not supported, only null", prefix_, key, json_[key].dump()),
          help);
  }

  ConfigReader section(const std::string& key) const {
    return ConfigReader(json_[key], prefix_ + key + ".");
  }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
  std::string prefix_;
};

/// Load loss of an even load: in transformers k, as a mean over layers; in Dovetail 1, as a sum
/// over layers.
double load_loss_of(double router_aux_loss_coef, const ModelConfig& c) {
  return router_aux_loss_coef * static_cast<double>(c.moe.k) / static_cast<double>(c.layers);
}
double router_aux_loss_coef_of(const ModelConfig& c) {
  return c.moe.load_loss * static_cast<double>(c.layers) / static_cast<double>(c.moe.k);
}

/// transformers 5 has rope_parameters; earlier versions had rope_theta and rope_scaling. The order
/// is the order of transformers: rope_scaling hides rope_parameters. The theta of either hides
/// rope_theta.
double read_rope_theta(const ConfigReader& reader, double absent) {
  const double theta = reader.get<double>("rope_theta", absent);
  for (const auto* key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.has(key)) continue;
    const auto rope = reader.section(key);
    if (rope.json().empty()) continue;
    for (const auto* type : {"rope_type", "type"}) rope.require<std::string>(type, {"default"});
    for (const auto* factor : {"factor", "attention_factor", "partial_rotary_factor"})
      rope.require<double>(factor, {1.0});
    for (const auto& [name, value] : rope.json().items())
      if (value.is_structured()) rope.refuse(name);
    return rope.get<double>("rope_theta", theta);
  }
  return theta;
}

/// Rejects keys of variants by other programs, which transformers' own classes of these names do
/// not read.
void refuse_variants(const ConfigReader& reader, int64_t context) {
  reader.refuse("quantization_config",
                "dequantize the model with transformers and save it as bfloat16");
  reader.refuse("transformers_weights", "save the model with save_pretrained(...)");
  for (const auto* key :
       {"final_logit_softcapping", "attn_logit_softcapping", "logit_softcapping",
        "query_pre_attn_scalar", "attention_multiplier", "attention_chunk_size", "no_rope_layers"})
    reader.refuse(key);
  for (const auto* key :
       {"partial_rotary_factor", "rotary_pct", "embedding_multiplier", "residual_multiplier",
        "logits_scaling", "logit_scale", "rope_scaling_factor"})
    reader.require<double>(key, {1.0});
  for (const auto* key : {"use_qk_norm", "qk_norm", "qk_layernorm", "use_alibi", "alibi",
                          "parallel_attn", "use_parallel_residual", "is_encoder_decoder"})
    reader.require<bool>(key, {false});
  reader.require<bool>("is_causal", {true});
  if (reader.has("layer_types"))
    for (const auto& type : reader.json()["layer_types"])
      user_check(type == "full_attention",
                 "layer_types has {}; only \"full_attention\" is supported", type.dump());
  if (reader.has("sliding_window") && reader.get<bool>("use_sliding_window", true)) {
    const auto window = reader.get<int64_t>("sliding_window");
    user_check(window >= context,
               "sliding_window = {} is not supported, only null or at least the context of {}",
               window, context);
  }
}

ModelConfig read_llama(const ConfigReader& reader, double absent_theta = 10000.0,
                       double absent_eps = 1e-6) {
  reader.require<std::string>("hidden_act", {"silu", "swish"});
  reader.require<bool>("attention_bias", {false});
  reader.require<bool>("mlp_bias", {false});
  ModelConfig c;
  c.layers = reader.get<int64_t>("num_hidden_layers");
  c.width = reader.get<int64_t>("hidden_size");
  c.heads = reader.get<int64_t>("num_attention_heads");
  c.kv_heads = reader.get<int64_t>("num_key_value_heads", 0);
  c.head_dim = reader.get<int64_t>("head_dim", 0);
  c.ffn_width = reader.get<int64_t>("intermediate_size");
  c.context = reader.get<int64_t>("max_position_embeddings");
  c.vocab_size = reader.get<int64_t>("vocab_size");
  c.norm_eps = reader.get<double>("rms_norm_eps", absent_eps);
  c.rotary_theta = read_rope_theta(reader, absent_theta);
  c.tied = reader.get<bool>("tie_word_embeddings", false);
  c.init_std = reader.get<double>("initializer_range", c.init_std);
  refuse_variants(reader, c.context);
  return c;
}

ModelConfig read_mixtral(const ConfigReader& reader) {
  ModelConfig c = read_llama(reader, 1e6, 1e-5);
  reader.require<double>("router_jitter_noise", {0.0});
  if (!reader.json().contains("num_key_value_heads")) c.kv_heads = 8;
  c.moe.experts = reader.get<int64_t>("num_local_experts");
  c.moe.k = reader.get<int64_t>("num_experts_per_tok");
  user_check(
      c.moe.k > 1,
      "num_experts_per_tok = 1 is not supported: its weight would be 1 whatever the router says");
  c.moe.load_loss = load_loss_of(reader.get<double>("router_aux_loss_coef", 0.0), c);
  return c;
}

ModelConfig read_gpt2(const ConfigReader& reader) {
  // Three names of one function.
  reader.require<std::string>("activation_function",
                              {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
  reader.require<bool>("scale_attn_weights", {true});
  reader.require<bool>("scale_attn_by_inverse_layer_idx", {false});
  reader.require<bool>("add_cross_attention", {false});
  ModelConfig c;
  c.layers = reader.get<int64_t>("n_layer");
  c.width = reader.get<int64_t>("n_embd");
  c.heads = reader.get<int64_t>("n_head");
  c.ffn_width = reader.get<int64_t>("n_inner", 0);
  c.context = reader.get<int64_t>("n_positions");
  c.vocab_size = reader.get<int64_t>("vocab_size");
  // Alternative names of these keys, which transformers prefers.
  reader.require<int64_t>("num_hidden_layers", {c.layers});
  reader.require<int64_t>("hidden_size", {c.width});
  reader.require<int64_t>("num_attention_heads", {c.heads});
  reader.require<int64_t>("max_position_embeddings", {c.context});
  c.norm = "layernorm";
  c.norm_eps = reader.get<double>("layer_norm_epsilon", 1e-5);
  c.activation = "gelu";
  c.positions = "learned";
  c.bias = true;
  c.tied = reader.get<bool>("tie_word_embeddings", true);
  c.init_std = reader.get<double>("initializer_range", c.init_std);
  refuse_variants(reader, c.context);
  return c;
}

/// Resolves a config. Checks first that its values are in the ranges of the schema.
ModelConfig resolved(ModelConfig config) {
  const Describe describe = [&](Section& s) { config.describe(s); };
  config_from_json(describe, config_to_json(describe), "model");
  return resolve_model_config(config, 0);
}

}  // namespace

HuggingfaceArchitecture huggingface_architecture(const ModelConfig& config) {
  const auto llama = llama_obstacle(config), mixtral = mixtral_obstacle(config),
             gpt2 = gpt2_obstacle(config);
  if (llama.empty()) return HuggingfaceArchitecture::kLlama;
  if (mixtral.empty()) return HuggingfaceArchitecture::kMixtral;
  if (gpt2.empty()) return HuggingfaceArchitecture::kGpt2;
  throw UserError(fmt::format("Hugging Face's architectures cannot express this model: llama not "
                              "{}, mixtral not {}, gpt2 not {}",
                              llama, mixtral, gpt2),
                  "use the checkpoint itself, or train with the sizes of a llama or gpt2 preset");
}

std::vector<int64_t> TensorLayout::shape_of(const Part& part) const {
  if (columns == 0) return {part.rows};
  return transposed ? std::vector{columns, part.rows} : std::vector{part.rows, columns};
}

void visit_huggingface_tensors(HuggingfaceArchitecture architecture, const ModelConfig& config,
                               const std::function<void(const TensorLayout&)>& visit) {
  architecture == HuggingfaceArchitecture::kGpt2 ? visit_gpt2(config, visit)
                                                 : visit_llama(config, visit);
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
            {"tie_word_embeddings", c.tied},
            {"attn_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"resid_pdrop", 0.0},
            {"torch_dtype", "float32"}};
  }
  const bool mixtral = architecture == HuggingfaceArchitecture::kMixtral;
  Json json = {{"architectures", {mixtral ? "MixtralForCausalLM" : "LlamaForCausalLM"}},
               {"model_type", mixtral ? "mixtral" : "llama"},
               {"hidden_act", "silu"},
               {"num_hidden_layers", c.layers},
               {"hidden_size", c.width},
               {"num_attention_heads", c.heads},
               {"num_key_value_heads", c.kv_heads},
               {"head_dim", c.head_dim},
               {"intermediate_size", mixtral ? c.moe.ffn_width : c.ffn_width},
               {"max_position_embeddings", c.context},
               {"vocab_size", c.vocab_size},
               {"rms_norm_eps", c.norm_eps},
               {"rope_theta", c.rotary_theta},
               {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", c.rotary_theta}}},
               {"tie_word_embeddings", c.tied},
               {"initializer_range", c.init_std},
               {"torch_dtype", "float32"}};
  if (mixtral) {
    json.update({{"num_local_experts", c.moe.experts},
                 {"num_experts_per_tok", c.moe.k},
                 {"router_aux_loss_coef", router_aux_loss_coef_of(c)},
                 {"router_jitter_noise", 0.0},
                 {"sliding_window", nullptr}});
  } else {
    json.update({{"attention_bias", false}, {"mlp_bias", false}});
  }
  return json;
}

HuggingfaceModel from_huggingface_config(const Json& json, const std::string& name) {
  try {
    const ConfigReader reader(json);
    const auto type = reader.get<std::string>("model_type");
    if (type == "llama") return {HuggingfaceArchitecture::kLlama, resolved(read_llama(reader))};
    if (type == "mixtral")
      return {HuggingfaceArchitecture::kMixtral, resolved(read_mixtral(reader))};
    if (type == "gpt2") return {HuggingfaceArchitecture::kGpt2, resolved(read_gpt2(reader))};
    throw UserError(fmt::format(
        "model_type = \"{}\" is not supported, only \"llama\", \"mixtral\" and \"gpt2\"", type));
  } catch (const UserError& error) {
    throw UserError(error.what(), error.help(), name);
  }
}

}  // namespace dovetail::models
