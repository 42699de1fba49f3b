#pragma once

#include <filesystem>
#include <string>

#include "dovetail/models/gpt.h"

namespace dovetail {

/// Write `config.json`, `model.safetensors` and (bpe) `tokenizer.json` that `transformers` loads: architecture "llama" (rmsnorm, swiglu, full
/// rotary, no bias) or "gpt2" (layernorm, gelu, learned positions, bias, tied, kv_heads = heads), chosen from the model's config. Logits are equal.
/// Throws UserError naming the first config key that neither can express.
void export_huggingface(GPT& model, const std::string& tokenizer_kind, const std::string& tokenizer_content,
                        const std::filesystem::path& folder);

/// The reverse: a model from such a folder (sharded safetensors with an index also). Throws UserError naming what is not supported.
std::shared_ptr<GPT> import_huggingface(const std::filesystem::path& folder);

}  // namespace dovetail
