#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace dovetail::cli {

/// Description of a file or folder that Dovetail reads or writes.
struct Inspection {
  std::string kind;  ///< kind of file or folder, in words
  /// Facts by name, in the order to show. A fact that is an array of objects is shown as a table,
  /// for example of tensors or checkpoints.
  nlohmann::ordered_json facts;
};

/// Describes the file or folder `path`. It may be a training run, a checkpoint, prepared data, a
/// Hugging Face folder, a safetensors file or a tokenizer. Verifies checksums and structure. Throws
/// UserError if it is none of these, or damaged.
Inspection inspect(const std::filesystem::path& path);

}  // namespace dovetail::cli
