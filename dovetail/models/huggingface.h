#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "dovetail/models/gpt.h"

namespace dovetail {

/// Write a folder that `transformers` loads, logits being equal: `config.json`, `model.safetensors`
/// (float32), and for "bytes" and "bpe" `tokenizer.json` with `tokenizer_config.json`, for
/// "sentencepiece" `tokenizer.model`. The architecture is "llama" (rmsnorm, swiglu, full rotary, no
/// bias) or "gpt2" (layernorm, gelu, learned positions, bias, kv_heads = heads), chosen from the
/// model's config. Throws UserError naming the config key that keeps either from expressing it.
void export_huggingface(GPT& model, const std::string& tokenizer_kind,
                        const std::string& tokenizer_content, const std::filesystem::path& folder);

/// The reverse: a float32 model from such a folder (sharded safetensors with an index also). Every
/// tensor of the files is used: a head of its own beside a tied config unties the model, with a
/// warning. Throws UserError naming what is not supported, missing or left over.
std::shared_ptr<GPT> import_huggingface(const std::filesystem::path& folder);

}  // namespace dovetail
