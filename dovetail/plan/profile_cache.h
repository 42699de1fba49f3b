#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "dovetail/plan/captured_step.h"

namespace dovetail::plan {

/// What was measured of operations, from one process to the next: one JSON file for each processor, instruction set,
/// number of threads, version of torch and build of our kernels, in a folder.
class ProfileCache {
 public:
  /// Reads the file of this machine in `folder`, if there is one (UserError where it is none of ours); an empty folder:
  /// nothing is read or kept.
  explicit ProfileCache(const std::filesystem::path& folder);

  std::optional<nlohmann::json> find(const std::string& key) const;
  void put(const std::string& key, nlohmann::json value);
  /// Writes what was put, if anything was: makes the folder, and replaces the file as a whole.
  void save();
  const std::filesystem::path& file() const { return file_; }

  /// $DOVETAIL_CACHE, $XDG_CACHE_HOME/dovetail or ~/.cache/dovetail, and there "profiles".
  static std::filesystem::path default_folder();

 private:
  std::filesystem::path file_;
  nlohmann::json machine_;
  std::map<std::string, nlohmann::json> entries_;
  bool changed_ = false;
};

/// What operations are, as text: names, and of each argument the sizes, strides and dtype, or the value. Nothing where
/// one has a value that cannot be compared: a body of ours (base/operation.h).
std::optional<std::string> key_of(std::span<const CapturedOperation> operations);

}  // namespace dovetail::plan
