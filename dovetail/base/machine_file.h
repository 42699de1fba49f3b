#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace dovetail {

/// Key-value store for measurements of a machine. It is a JSON file, so later processes can read
/// it. A folder has one file per machine, and the caller's JSON object `machine` identifies the
/// machine.
class MachineFile {
 public:
  /// Reads the file of `machine` in `folder`, if it exists. Throws UserError if the file is not in
  /// the format and version that `save` writes, or belongs to another machine. With an empty
  /// `folder`, no file is read or written: entries exist in memory only.
  MachineFile(const std::filesystem::path& folder, nlohmann::json machine);

  const std::map<std::string, nlohmann::json>& entries() const { return entries_; }
  /// Returns the value of `key`; nullopt if there is none.
  std::optional<nlohmann::json> find(const std::string& key) const;
  /// Sets the value of `key` in memory.
  void put(const std::string& key, nlohmann::json value);
  /// Writes all entries if `put` was called since the last save. Creates the folder if needed and
  /// replaces the file atomically.
  void save();
  /// Path of the file; empty if `folder` was empty.
  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
  nlohmann::json machine_;
  std::map<std::string, nlohmann::json> entries_;
  bool changed_ = false;
};

}  // namespace dovetail
