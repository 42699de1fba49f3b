#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace dovetail::cli {

/// What a file or folder is. `facts` are in the order to show; one that is an array of objects is a
/// table (tensors, checkpoints).
struct Inspection {
  std::string kind;
  nlohmann::ordered_json facts;
};

/// Recognises a run, a checkpoint, prepared data, a Hugging Face folder, a safetensors file or a
/// tokenizer, and verifies its checksums and structure. Throws UserError when it is none of them,
/// or damaged.
Inspection inspect(const std::filesystem::path& path);

}  // namespace dovetail::cli
