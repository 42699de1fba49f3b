#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace dovetail {

/// What was measured on a machine, by keys, from one process to the next: one JSON file for each
/// machine in a folder. What tells machines apart is the caller's to say.
class MachineFile {
 public:
  /// Reads the file of `machine` in `folder`, if there is one (UserError where it is none of ours);
  /// an empty folder: nothing is read or kept.
  MachineFile(const std::filesystem::path& folder, nlohmann::json machine);

  const std::map<std::string, nlohmann::json>& entries() const { return entries_; }
  std::optional<nlohmann::json> find(const std::string& key) const;
  void put(const std::string& key, nlohmann::json value);
  /// Writes what was put, if anything was: makes the folder, and replaces the file as a whole.
  void save();
  /// Empty where nothing is kept.
  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
  nlohmann::json machine_;
  std::map<std::string, nlohmann::json> entries_;
  bool changed_ = false;
};

}  // namespace dovetail
