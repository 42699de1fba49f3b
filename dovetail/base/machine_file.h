#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace dovetail {

/// Key-value store for measurements of a machine that persists between processes. A folder has one
/// JSON file per machine. The caller's `machine` object identifies the machine.
class MachineFile {
 public:
  /// Reads the file of `machine` in `folder`, if it exists. Throws UserError if the file has
  /// another format, version or machine. With an empty `folder`, nothing is read or stored.
  MachineFile(const std::filesystem::path& folder, nlohmann::json machine);

  const std::map<std::string, nlohmann::json>& entries() const { return entries_; }
  std::optional<nlohmann::json> find(const std::string& key) const;
  void put(const std::string& key, nlohmann::json value);
  /// Writes all entries if `put` was called since the last save. Creates the folder if needed and
  /// replaces the file atomically.
  void save();
  /// Path of the file; empty if nothing is stored.
  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
  nlohmann::json machine_;
  std::map<std::string, nlohmann::json> entries_;
  bool changed_ = false;
};

}  // namespace dovetail
