#include "dovetail/models/huggingface.h"

#include <torch/types.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/data/text/tokenizer.h"
#include "dovetail/data/text/tokenizer_json.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/models/huggingface_layout.h"

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

std::map<std::string, at::Tensor> export_tensors(GPT& model, HuggingfaceArchitecture architecture) {
  const auto parameters = model.named_parameters();
  std::map<std::string, at::Tensor> tensors;
  visit_huggingface_tensors(architecture, model.config(), [&](const TensorLayout& layout) {
    const auto ours = parameters[layout.ours].detach().to(at::kCPU, at::kFloat);
    int64_t row = 0;
    for (const auto& part : layout.parts) {
      const auto rows = ours.narrow(0, row, part.rows);
      tensors[part.name] = (layout.transposed ? rows.t() : rows).contiguous();
      row += part.rows;
    }
  });
  return tensors;
}

}  // namespace

void export_huggingface(GPT& model, const std::string& tokenizer_kind,
                        const std::string& tokenizer_content, const fs::path& folder) {
  const torch::NoGradGuard no_grad;
  const auto architecture = huggingface_architecture(model.config());
  fs::create_directories(folder);
  auto config = to_huggingface_config(architecture, model.config());
  export_tokenizer(tokenizer_kind, tokenizer_content, folder, config);
  // transformers rejects a file without the entry `format`.
  io::write_safetensors(folder / "model.safetensors", export_tensors(model, architecture),
                        {{"format", "pt"}});
  write_file_atomically(folder / "config.json", config.dump(1) + "\n");
}

}  // namespace dovetail::models
