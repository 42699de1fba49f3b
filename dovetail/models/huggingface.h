#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "dovetail/models/gpt.h"

namespace dovetail::models {

/// Writes a folder from which Hugging Face `transformers` loads the model. The loaded model
/// computes the same logits. Files:
///
/// - `config.json` and `model.safetensors`. Tensors have the dtypes of the model; float64 becomes
///   float32. Weights of quantized Linears are in torchao's layout (io/torchao_weights.h).
/// - for tokenizer_kind "bytes" and "bpe": `tokenizer.json` and `tokenizer_config.json`
/// - for tokenizer_kind "sentencepiece": `tokenizer.model`
///
/// The model's config determines the architecture in `config.json`:
///
/// - "llama": rmsnorm, swiglu, full rotary, no bias
/// - "mixtral": like llama, but with experts in all blocks (top_k router, softmax scores)
/// - "gpt2": layernorm, gelu, learned positions, bias, kv_heads = heads
///
/// Throws UserError if no architecture can express the config. The error names, for each
/// architecture, a key that prevents it. Also throws if Linears are quantized, but not as torchao
/// can hold them in a "llama". The error names the Linear and the reason.
void export_huggingface(GPT& model, const std::string& tokenizer_kind,
                        const std::string& tokenizer_content, const std::filesystem::path& folder);

/// Imports a model as float32 from a folder of `transformers`, also from sharded safetensors with
/// an index. If config.json ties the head to the embedding, the files may still have a head matrix
/// that differs from it. The model then becomes untied, and a warning is logged.
///
/// Throws UserError that names a part which is not supported, a missing tensor, or a tensor that
/// does not belong to the model. Constants that older versions of transformers stored (masks,
/// rotary frequencies) are ignored.
std::shared_ptr<GPT> import_huggingface(const std::filesystem::path& folder);

}  // namespace dovetail::models
