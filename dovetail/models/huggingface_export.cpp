#include "dovetail/models/huggingface.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/text/tokenizer.h"
#include "dovetail/data/text/tokenizer_json.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/io/torchao_weights.h"
#include "dovetail/models/huggingface_layout.h"
#include "dovetail/mx/linear.h"

namespace dovetail::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Returns the bytes tokenizer in Hugging Face's form: byte-level BPE without merges. The split
/// does not matter without merges.
std::string bytes_tokenizer_json(int32_t end_of_document) {
  data::BpeFile file;
  for (int byte = 0; byte < 256; ++byte) {
    file.tokens.emplace_back(1, static_cast<char>(byte));
    file.byte_ids[static_cast<size_t>(byte)] = byte;
  }
  file.tokens.emplace_back();
  file.added.push_back(
      {.content = "<|endoftext|>", .id = end_of_document, .special = true, .normalized = false});
  return data::write_tokenizer_json(file);
}

/// Writes the tokenizer's files. Adds its ids to `config`.
void export_tokenizer(const std::string& kind, const std::string& content, const fs::path& folder,
                      Json& config) {
  const auto tokenizer = data::make_tokenizer(kind, content, "tokenizer");
  const auto end = tokenizer->end_of_document();
  if (end >= 0) config["bos_token_id"] = config["eos_token_id"] = end;
  if (kind == "sentencepiece") {
    write_file_atomically(folder / "tokenizer.model", content);
    return;
  }
  const std::string json = kind == "bytes" ? bytes_tokenizer_json(end) : content;
  // Without the class, transformers would rebuild the tokenizer in the architecture's own way.
  Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                           {"clean_up_tokenization_spaces", false}};
  for (const auto& added : Json::parse(json).value("added_tokens", Json::array())) {
    if (end >= 0 && added.value("id", -1) == end) {
      tokenizer_config["bos_token"] = tokenizer_config["eos_token"] = added.value("content", "");
    }
  }
  write_file_atomically(folder / "tokenizer.json", json);
  write_file_atomically(folder / "tokenizer_config.json", tokenizer_config.dump(1) + "\n");
}

/// Recipes of the quantized Linears by the names of their weights.
using Recipes = std::map<std::string, mx::LinearRecipe>;

/// Throws UserError unless torchao can hold all quantized Linears of `model`.
Recipes quantized_linears(const GPT& model, HuggingfaceArchitecture architecture) {
  Recipes recipes;
  for (const auto& linear : mx::quantizable_linears(model)) {
    if (linear->quantized() == nullptr) continue;
    const auto& [name, recipe] =
        *recipes.emplace(linear->options().name + ".weight", linear->quantized()->recipe()).first;
    std::string obstacle = io::torchao_obstacle(recipe, linear->options().in);
    const mx::LinearRecipe& first = recipes.begin()->second;
    if (architecture != HuggingfaceArchitecture::kLlama)
      obstacle = "only the matrices of a llama keep their layout in the files";
    else if (obstacle.empty() && (recipe.weight.format != first.weight.format ||
                                  recipe.weight.scale_mode != first.weight.scale_mode))
      obstacle = fmt::format("{} has another format or scale_mode, and torchao's config has one",
                             recipes.begin()->first);
    if (!obstacle.empty())
      throw UserError(
          fmt::format("the quantized {} cannot be exported: {}", linear->options().name, obstacle),
          "export in float32 or bf16, or in mxfp8, mxfp8_floor or mxfp4");
  }
  return recipes;
}

/// Adds the rows of a quantized weight to the tensors of `layout`. A scale is for elements of one
/// row, so rows are split as they are.
void put_quantized(const TensorLayout& layout, const at::Tensor& weight,
                   const mx::LinearRecipe& recipe, io::SafetensorsContent& content) {
  const mx::MXTensor whole = io::quantized_weight(weight, recipe.weight);
  int64_t row = 0;
  for (const auto& part : layout.parts) {
    const mx::MXTensor rows(whole.codes().narrow(0, row, part.rows),
                            whole.scales().narrow(0, row, part.rows), whole.format(),
                            whole.orientation());
    io::put_torchao_weight(part.name, rows, recipe, weight.scalar_type(), content);
    row += part.rows;
  }
}

io::SafetensorsContent export_tensors(GPT& model, HuggingfaceArchitecture architecture,
                                      const Recipes& quantized, Json& config) {
  const auto parameters = model.named_parameters();
  io::SafetensorsContent content;
  std::vector<std::string> high_precision;
  visit_huggingface_tensors(architecture, model.config(), [&](const TensorLayout& layout) {
    auto ours = parameters[layout.ours].detach().cpu();
    if (ours.scalar_type() == at::kDouble) ours = ours.to(at::kFloat);
    if (const auto found = quantized.find(layout.ours); found != quantized.end())
      return put_quantized(layout, ours, found->second, content);
    int64_t row = 0;
    for (const auto& part : layout.parts) {
      const auto rows = ours.narrow(0, row, part.rows);
      content.tensors[part.name] = (layout.transposed ? rows.t() : rows).contiguous();
      if (layout.columns > 0) high_precision.push_back(part.name.substr(0, part.name.rfind('.')));
      row += part.rows;
    }
  });
  if (!quantized.empty()) {
    io::name_torchao_tensors(content);
    config["quantization_config"] = io::torchao_config(quantized.begin()->second, high_precision);
  }
  content.metadata["format"] = "pt";  // transformers rejects a file without it
  return content;
}

}  // namespace

void export_huggingface(GPT& model, const std::string& tokenizer_kind,
                        const std::string& tokenizer_content, const fs::path& folder) {
  const torch::NoGradGuard no_grad;
  const auto architecture = huggingface_architecture(model.config());
  const Recipes quantized = quantized_linears(model, architecture);
  fs::create_directories(folder);
  auto config = to_huggingface_config(architecture, model.config());
  export_tokenizer(tokenizer_kind, tokenizer_content, folder, config);
  if (model.named_parameters()["embed.weight"].scalar_type() == at::kBFloat16)
    config["torch_dtype"] = "bfloat16";
  const io::SafetensorsContent content = export_tensors(model, architecture, quantized, config);
  io::write_safetensors(folder / "model.safetensors", content.tensors, content.metadata);
  write_file_atomically(folder / "config.json", config.dump(1) + "\n");
}

}  // namespace dovetail::models
