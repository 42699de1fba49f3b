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

namespace dovetail {

/// Throws UserError with the place if the file is not JSON, as with NaN and Infinity.
nlohmann::json read_json_file(const std::filesystem::path& path);

/// The tensors of a Hugging Face folder: of `model.safetensors`, or else of the shards that
/// `model.safetensors.index.json` names. Where both are there, the whole file is taken, as
/// transformers does, with a warning. Without an index, shards named
/// `model-00001-of-00002.safetensors` are read if all are there. Prefixes of wrappers of PyTorch
/// are removed with a warning if all names have them. Throws UserError naming files that are
/// missing, or files of other formats that are there instead.
class TensorFolder {
 public:
  explicit TensorFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  bool contains(const std::string& name) const { return file_of_.contains(name); }
  at::Tensor read(const std::string& name);
  /// Shape of a tensor of weights. Throws UserError for integers and 8-bit floats, which are codes
  /// of quantized weights.
  std::vector<int64_t> weight_shape(const std::string& name);
  /// The weights as float32. Throws as `weight_shape` does.
  at::Tensor read_weight(const std::string& name);
  /// Gives the tensor `from` the name `to`.
  void rename(const std::string& from, const std::string& to);
  /// Names of tensors that no call has read.
  const std::set<std::string>& unread() const { return unread_; }
  /// Warns if float32 could not hold weights that were float64.
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
  const SafetensorsFile& open(const std::string& file_name);
  const Place& place_of(const std::string& name) const;

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> file_of_;
  std::set<std::string> unread_;
  std::vector<std::string> rounded_;
};

}  // namespace dovetail
