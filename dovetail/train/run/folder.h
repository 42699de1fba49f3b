#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// File of a run that began from another run: what it took from there.
inline constexpr const char* kStartFile = "start.json";

/// Folder of a run (docs/training.md lists its files). While this object exists, no other process
/// can open the folder.
class RunFolder {
 public:
  /// Creates the folder, locks it and removes half-written files of killed processes. Throws
  /// UserError if another process holds the lock.
  explicit RunFolder(std::filesystem::path path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  /// Removes the checkpoints, event files, memory plan and start.json of an earlier run. The
  /// folders of checkpoints and of event files are removed atomically: after a kill each is either
  /// whole or gone. The memory plan and start.json are removed because the next run may have none.
  /// All other files are overwritten by the next run.
  void forget_earlier_run() const;

  /// Writes a resolved config (ResolvedRun::config) to config.toml.
  void write_config(const RunConfig& config) const;
  /// Writes `content` to the file `name` of the folder, such as machine.json. The JSON is indented
  /// and ends with a newline.
  void write_json(const char* name, const nlohmann::ordered_json& content) const;

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace dovetail::train
