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

/// Parses a JSON file. Throws UserError with the position if the file is not JSON; NaN and Infinity
/// are not JSON.
nlohmann::json read_json_file(const std::filesystem::path& path);

/// Tensors of a Hugging Face folder.
///
/// - They are in `model.safetensors`, or in the shards that `model.safetensors.index.json` names.
/// - If both exist, the whole file is read with a warning, as transformers does.
/// - Without an index, shards named `model-00001-of-00002.safetensors` are read if all exist.
/// - If all names have the prefix of a PyTorch wrapper, it is removed with a warning.
///
/// Throws UserError that names missing files, or files of other formats that exist instead.
class TensorFolder {
 public:
  explicit TensorFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  bool contains(const std::string& name) const { return file_of_.contains(name); }
  at::Tensor read(const std::string& name);
  /// Returns the shape of a weight tensor. Throws UserError for integers and 8-bit floats, which
  /// are codes of quantized weights.
  std::vector<int64_t> weight_shape(const std::string& name);
  /// Returns the weights as float32. Throws as `weight_shape` does, and for NaN and infinity.
  at::Tensor read_weight(const std::string& name);
  /// Renames tensor `from` to `to`.
  void rename(const std::string& from, const std::string& to);
  /// Returns the names of tensors that no call has read.
  const std::set<std::string>& unread() const { return unread_; }
  /// Warns if float64 weights were rounded to float32.
  void warn_of_rounding() const;

 private:
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
