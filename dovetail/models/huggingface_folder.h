#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "dovetail/io/safetensors.h"

namespace dovetail::models {

/// Parses a JSON file. Throws UserError with the position of the error if the file is not JSON. NaN
/// and Infinity, which Python writes, are not JSON.
nlohmann::json read_json_file(const std::filesystem::path& path);

/// Tensors in the files of a Hugging Face folder.
///
/// - They are in `model.safetensors`, or in the shards that `model.safetensors.index.json` names.
/// - If both exist, `model.safetensors` is read with a warning, as transformers does.
/// - Without either, shards named like `model-00001-of-00002.safetensors` are read if all exist.
/// - If all tensor names have the prefix of a PyTorch wrapper ("module." or "_orig_mod."), the
///   prefix is removed with a warning.
class TensorFolder {
 public:
  /// Reads the names of all tensors. Throws UserError if shards are missing; the error lists them.
  /// Also throws if the folder has none of the files above. The error then lists the model files of
  /// other formats in the folder.
  explicit TensorFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  bool contains(const std::string& name) const { return file_of_.contains(name); }
  /// Reads a tensor in the dtype of its file. This and the functions below throw UserError if the
  /// folder has no tensor `name`.
  at::Tensor read(const std::string& name);
  /// Returns the shape of a weight tensor. Throws UserError unless its dtype is float32, float64,
  /// bfloat16 or float16: integers and 8-bit floats are codes of quantized weights.
  std::vector<int64_t> weight_shape(const std::string& name);
  /// Reads a weight tensor as float32. Throws as `weight_shape` does, and for NaN and infinity.
  at::Tensor read_weight(const std::string& name);
  /// Renames tensor `from` to `to`. A tensor that had the name `to` is dropped. The renamed tensor
  /// counts as unread.
  void rename(const std::string& from, const std::string& to);
  /// Returns the names of tensors that `read` and `read_weight` have not read.
  const std::set<std::string>& unread() const { return unread_; }
  /// Logs a warning if `read_weight` has rounded float64 weights to float32.
  void warn_of_rounding() const;

 private:
  /// File of a tensor, and its name there.
  struct Place {
    std::string file, name;
  };
  void read_index(const std::filesystem::path& path);
  void read_shards(const std::set<std::string>& shards);
  std::set<std::string> shards_by_name() const;
  void remove_wrappers();
  [[noreturn]] void refuse_without_tensors() const;
  const io::SafetensorsFile& open(const std::string& file_name);
  const Place& place_of(const std::string& name) const;

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files_;
  std::map<std::string, Place> file_of_;
  std::set<std::string> unread_;
  std::vector<std::string> rounded_;
};

}  // namespace dovetail::models
