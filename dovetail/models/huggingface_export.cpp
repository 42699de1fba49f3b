#include "dovetail/models/huggingface.h"

#include <torch/types.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/data/tokenizer.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/models/huggingface_layout.h"

namespace dovetail {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// GPT-2's printable stand-in of each byte, as UTF-8: printable Latin-1 stands for itself, the others follow from
/// U+0100.
std::string byte_symbol(int byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 128) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

/// The bytes tokenizer in Hugging Face's form: byte-level BPE without a merge.
Json bytes_tokenizer_json(int32_t end_of_document) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_symbol(byte)] = byte;
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", end_of_document},
             {"content", "<|endoftext|>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", Json::array()}}}};
}

/// Writes the tokenizer's files and its ids into `config`.
void export_tokenizer(const std::string& kind, const std::string& content, const fs::path& folder, Json& config) {
  const auto tokenizer = make_tokenizer(kind, content, "tokenizer");
  const auto end = tokenizer->end_of_document();
  if (end >= 0) config["bos_token_id"] = config["eos_token_id"] = end;
  if (kind == "sentencepiece") {
    write_file_atomically(folder / "tokenizer.model", content);
    return;
  }
  const auto json = kind == "bytes" ? bytes_tokenizer_json(end) : Json::parse(content);
  // Without the class transformers would rebuild the tokenizer in the manner of the architecture.
  Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  for (const auto& added : json.value("added_tokens", Json::array())) {
    if (end >= 0 && added.value("id", -1) == end) {
      tokenizer_config["bos_token"] = tokenizer_config["eos_token"] = added.value("content", "");
    }
  }
  write_file_atomically(folder / "tokenizer.json", kind == "bytes" ? json.dump(1) : content);
  write_file_atomically(folder / "tokenizer_config.json", tokenizer_config.dump(1) + "\n");
}

std::map<std::string, at::Tensor> export_tensors(GPT& model, HuggingfaceArchitecture architecture) {
  const auto parameters = model.named_parameters();
  std::map<std::string, at::Tensor> tensors;
  for (const auto& layout : huggingface_tensors(architecture, model.config())) {
    const auto ours = parameters[layout.ours].detach().to(at::kCPU, at::kFloat);
    int64_t row = 0;
    for (const auto& part : layout.parts) {
      const auto rows = ours.narrow(0, row, part.rows);
      tensors[part.name] = (layout.transposed ? rows.t() : rows).contiguous();
      row += part.rows;
    }
  }
  return tensors;
}

}  // namespace

void export_huggingface(GPT& model, const std::string& tokenizer_kind, const std::string& tokenizer_content,
                        const fs::path& folder) {
  const torch::NoGradGuard no_grad;
  const auto architecture = huggingface_architecture(model.config());
  fs::create_directories(folder);
  auto config = to_huggingface_config(architecture, model.config());
  export_tokenizer(tokenizer_kind, tokenizer_content, folder, config);
  // transformers refuses a file without this entry.
  write_safetensors(folder / "model.safetensors", export_tensors(model, architecture), {{"format", "pt"}});
  write_file_atomically(folder / "config.json", config.dump(1) + "\n");
}

}  // namespace dovetail
