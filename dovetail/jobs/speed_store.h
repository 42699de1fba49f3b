#pragma once

#include <filesystem>
#include <string>

#include "dovetail/base/machine_file.h"
#include "dovetail/jobs/speed.h"

namespace dovetail::jobs {

/// File of measured speeds, so that a later process on the same machine need not measure again. The
/// machine is identified by its processor, instruction set and number of cores. A key is a text
/// that names a task and an executor (jobs/runtime.h).
class SpeedStore {
 public:
  /// Reads the machine's file in `folder`, if it exists. If `folder` is empty, nothing is read or
  /// stored. Throws UserError if the file has another format, version or machine (MachineFile).
  /// Also throws it if an entry is not a list of times.
  explicit SpeedStore(const std::filesystem::path& folder);

  /// Returns the history stored under `key`, or an empty one if there is none.
  SpeedHistory find(const std::string& key) const;
  /// Stores the history in memory until `save`. Ignores an empty history.
  void put(const std::string& key, const SpeedHistory& history);
  /// Writes the file if `put` was called since the last save.
  void save() { file_.save(); }
  /// Returns the path of the file; empty if nothing is stored.
  const std::filesystem::path& file() const { return file_.file(); }

 private:
  MachineFile file_;
};

}  // namespace dovetail::jobs
