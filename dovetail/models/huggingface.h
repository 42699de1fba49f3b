#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "dovetail/models/gpt.h"

namespace dovetail::models {

/// Writes a folder that `transformers` loads, with equal logits:
///
/// - `config.json` and `model.safetensors` (float32)
/// - for "bytes" and "bpe": `tokenizer.json` and `tokenizer_config.json`
/// - for "sentencepiece": `tokenizer.model`
///
/// The model's config determines the architecture:
///
/// - "llama": rmsnorm, swiglu, full rotary, no bias
/// - "gpt2": layernorm, gelu, learned positions, bias, kv_heads = heads
///
/// Throws UserError that names the config key which no architecture can express.
void export_huggingface(GPT& model, const std::string& tokenizer_kind,
                        const std::string& tokenizer_content, const std::filesystem::path& folder);

/// Imports a float32 model from a folder of `transformers`, also from sharded safetensors with an
/// index. Uses every tensor of the files. If the config is tied but the head has its own matrix,
/// the model becomes untied, with a warning. Throws UserError that names what is not supported,
/// missing or left over.
std::shared_ptr<GPT> import_huggingface(const std::filesystem::path& folder);

}  // namespace dovetail::models
