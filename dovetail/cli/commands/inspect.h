#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace dovetail::cli {

/// Description of a file or folder. `facts` are in the order to show. A fact that is an array of
/// objects is a table (tensors, checkpoints).
struct Inspection {
  std::string kind;
  nlohmann::ordered_json facts;
};

/// Recognises a run, a checkpoint, prepared data, a Hugging Face folder, a safetensors file or a
/// tokenizer. Verifies its checksums and structure. Throws UserError if it is none of these, or
/// damaged.
Inspection inspect(const std::filesystem::path& path);

}  // namespace dovetail::cli
