#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/hybrid/speed.h"

namespace dovetail::hybrid {

/// Histories of speeds from one process to the next: a JSON file for each machine (processor, instruction set, cores)
/// in a folder. Keys say what was run, on what (see Runtime).
class SpeedStore {
 public:
  /// Reads the file of this machine in `folder`, if there is one: UserError where it is none of ours. An empty folder:
  /// nothing is read or kept.
  explicit SpeedStore(const std::filesystem::path& folder);

  /// An empty one where there is none.
  SpeedHistory find(const std::string& key) const;
  void put(const std::string& key, const SpeedHistory& history);
  /// Writes what there is, if anything was put: makes the folder, and replaces the file as a whole.
  void save();
  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
  nlohmann::json machine_;
  std::map<std::string, nlohmann::json> entries_;
  bool changed_ = false;
};

}  // namespace dovetail::hybrid
