#pragma once

#include <filesystem>
#include <string>

#include "dovetail/base/machine_file.h"
#include "dovetail/jobs/speed.h"

namespace dovetail::jobs {

/// Measured speeds, kept from one process to the next for each machine (processor, instruction set,
/// cores). A key names task and executor (see Runtime).
class SpeedStore {
 public:
  /// Opens the file in `folder` as MachineFile does. Throws UserError also for entries that are not
  /// times.
  explicit SpeedStore(const std::filesystem::path& folder);

  /// Returns the history of a key, or an empty one if there is none.
  SpeedHistory find(const std::string& key) const;
  void put(const std::string& key, const SpeedHistory& history);
  void save() { file_.save(); }
  const std::filesystem::path& file() const { return file_.file(); }

 private:
  MachineFile file_;
};

}  // namespace dovetail::jobs
