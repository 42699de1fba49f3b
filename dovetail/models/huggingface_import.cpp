#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/models/huggingface.h"
#include "dovetail/models/huggingface_folder.h"
#include "dovetail/models/huggingface_layout.h"

namespace dovetail::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHead = "lm_head.weight";

/// Returns the name of a tensor in the files. Files of the bare transformer, such as GPT-2's own,
/// omit "transformer." or "model.".
std::string name_in(const TensorFolder& source, const std::string& name) {
  for (const std::string_view prefix : {"transformer.", "model."})
    if (name.starts_with(prefix) && !source.contains(name) &&
        source.contains(name.substr(prefix.size())))
      return name.substr(prefix.size());
  return name;
}

void import_parameter(at::Tensor& parameter, const TensorLayout& layout, TensorFolder& source) {
  std::vector<at::Tensor> parts;
  for (const auto& part : layout.parts) {
    auto tensor = source.read_weight(name_in(source, part.name));
    parts.push_back(layout.transposed ? tensor.t() : tensor);
  }
  const auto whole = parts.size() == 1 ? parts[0] : at::cat(parts);
  DOVETAIL_CHECK(whole.sizes() == parameter.sizes(), "{} is [{}], not [{}]", layout.ours,
                 fmt::join(parameter.sizes(), ", "), fmt::join(whole.sizes(), ", "));
  parameter.copy_(whole);
}

/// Compares each tensor that config.json requires with the headers of the files. Allocates no
/// memory for the tensors.
void check_tensors(const HuggingfaceModel& described, TensorFolder& source) {
  visit_huggingface_tensors(
      described.architecture, described.config, [&](const TensorLayout& layout) {
        for (const auto& part : layout.parts) {
          const auto found = source.weight_shape(name_in(source, part.name)),
                     wanted = layout.shape_of(part);
          if (found != wanted)
            throw UserError(fmt::format("tensor {} is [{}], but config.json asks for [{}]",
                                        part.name, fmt::join(found, ", "), fmt::join(wanted, ", ")),
                            "config.json and the tensors are of two models. Get both from one "
                            "place, or mend the sizes in config.json",
                            source.path().string());
        }
      });
}

/// Compares a tied config with the two matrices in the files, as transformers does. A separate head
/// unties the model. A head without an embedding is used as the embedding.
void resolve_head(HuggingfaceModel& described, TensorFolder& source) {
  if (!described.config.tied || !source.contains(kHead)) return;
  const auto embedding = name_in(source, described.architecture == HuggingfaceArchitecture::kGpt2
                                             ? "transformer.wte.weight"
                                             : "model.embed_tokens.weight");
  if (!source.contains(embedding)) return source.rename(kHead, embedding);
  if (at::equal(source.read_weight(embedding), source.read_weight(kHead))) return;
  described.config.tied = false;
  log_warning(
      "{}: config.json ties the head to the embedding, but {} and {} differ. The model is imported "
      "with both (model.tied = false), as transformers loads it",
      source.path().string(), kHead, embedding);
}

/// Recognizes constants that older versions of transformers stored: the causal mask, its value, and
/// rotary frequencies. Returns false for any other tensor, and for a constant with other content.
bool is_stored_constant(const std::string& name, const at::Tensor& tensor,
                        const HuggingfaceModel& model) {
  const ModelConfig& c = model.config;
  const auto of_a_block = [&](std::string_view prefix, std::string_view suffix) {
    for (int64_t i = 0; i < c.layers; ++i)
      for (const std::string_view base : {"transformer.", "model.", ""})
        if (name == fmt::format("{}{}.{}.{}", base, prefix, i, suffix)) return true;
    return false;
  };
  if (model.architecture == HuggingfaceArchitecture::kGpt2) {
    if (of_a_block("h", "attn.masked_bias"))
      return tensor.numel() == 1 && tensor.item<double>() <= -1e4;
    if (!of_a_block("h", "attn.bias") || tensor.dim() != 4 || tensor.numel() == 0) return false;
    const int64_t size = tensor.size(3);
    if (tensor.sizes() != at::IntArrayRef({1, 1, size, size})) return false;
    return at::equal(tensor.to(at::kFloat), at::ones({1, 1, size, size}).tril());
  }
  if (!of_a_block("layers", "self_attn.rotary_emb.inv_freq") && name != "model.rotary_emb.inv_freq")
    return false;
  const auto exponents =
      at::arange(0, c.head_dim, 2, at::kDouble) / static_cast<double>(c.head_dim);
  const auto frequencies = at::pow(c.rotary_theta, -exponents);
  const double tolerance = c10::elementSize(tensor.scalar_type()) < 4 ? 1e-2 : 1e-4;
  return tensor.sizes() == frequencies.sizes() &&
         at::allclose(tensor.to(at::kDouble), frequencies, tolerance, 1e-7);
}

/// Returns advice for a tensor that the model has no place for.
std::string advice_about(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("lora_"))
    return "it belongs to an adapter: merge it with peft's merge_and_unload() and save the result "
           "with save_pretrained(...)";
  for (const auto* part :
       {"scale", "zero_point", "qweight", "qzeros", "g_idx", "absmax", "quant", "SCB"})
    if (has(part))
      return "the weights are quantized: dequantize them with transformers and save them as "
             "bfloat16";
  if (has("inv_freq") || has("masked_bias") || name.ends_with(".attn.bias"))
    return "its content is not the constant that follows from config.json. Mend rope_theta or the "
           "sizes there, or leave the tensor out";
  if (has("_norm.") || has("layernorm.")) return "config.json describes a model without this norm";
  if (name.ends_with(".bias"))
    return "config.json's model_type has no bias here, and biases of variants are not supported";
  return "if config.json is right, save the model without this tensor: transformers' "
         "from_pretrained(...) and save_pretrained(...)";
}

void check_rest(const HuggingfaceModel& described, TensorFolder& source) {
  std::vector<std::string> rest;
  for (const auto& name : std::set(source.unread()))
    if (!is_stored_constant(name, source.read(name), described)) rest.push_back(name);
  if (rest.empty()) return;
  const auto more =
      rest.size() == 1 ? std::string() : fmt::format(" (and {} more tensors)", rest.size() - 1);
  throw UserError(fmt::format("{}: tensor {}{} is not part of the model that config.json describes",
                              source.path().string(), rest[0], more),
                  advice_about(rest[0]));
}

}  // namespace

std::shared_ptr<GPT> import_huggingface(const fs::path& folder) {
  const torch::NoGradGuard no_grad;
  if (fs::exists(folder / "adapter_config.json"))
    throw UserError(
        fmt::format("{} holds an adapter (adapter_config.json), which import does not apply",
                    folder.string()),
        "merge it with peft's merge_and_unload() and save the result with save_pretrained(...)");
  const auto config_path = folder / "config.json";
  auto described = from_huggingface_config(read_json_file(config_path), config_path.string());
  TensorFolder source(folder);
  resolve_head(described, source);
  check_tensors(described, source);
  auto model = std::make_shared<GPT>(described.config);
  auto parameters = model->named_parameters();
  visit_huggingface_tensors(described.architecture, described.config,
                            [&](const TensorLayout& layout) {
                              import_parameter(parameters[layout.ours], layout, source);
                            });
  check_rest(described, source);
  source.warn_of_rounding();
  return model;
}

}  // namespace dovetail::models
