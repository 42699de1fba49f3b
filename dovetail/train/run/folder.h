#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>

#include "dovetail/train/config/run_config.h"

namespace dovetail {

/// The folder of a run, held by this process alone.
class RunFolder {
 public:
  /// Makes the folder, takes its lock and removes what killed processes left half-written. Throws
  /// UserError when another process holds the lock.
  explicit RunFolder(std::filesystem::path path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  /// Removes the checkpoints and events of what ran here before, each folder at once: a kill leaves
  /// it whole or gone; and its memory plan, which the next run may have none of. The other files
  /// are written anew by the next run.
  void forget_earlier_run() const;

  /// config.toml: the resolved config.
  void write_config(const RunConfig& config) const;
  /// machine.json, samples.json: indented, with a newline at the end.
  void write_json(const char* name, const nlohmann::ordered_json& content) const;

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace dovetail
