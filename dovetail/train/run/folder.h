#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Folder of a run, locked by this process.
class RunFolder {
 public:
  /// Creates the folder, takes its lock and removes half-written files of killed processes. Throws
  /// UserError if another process holds the lock.
  explicit RunFolder(std::filesystem::path path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  /// Removes the checkpoints, events and memory plan of an earlier run. Each folder is removed at
  /// once: after a kill it is either whole or gone. The memory plan is removed because the next run
  /// may have none. The next run overwrites all other files.
  void forget_earlier_run() const;

  /// Writes the resolved config to config.toml.
  void write_config(const RunConfig& config) const;
  /// Writes a file such as machine.json or samples.json: indented, with a newline at the end.
  void write_json(const char* name, const nlohmann::ordered_json& content) const;

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace dovetail::train
