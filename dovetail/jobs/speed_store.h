#pragma once

#include <filesystem>
#include <string>

#include "dovetail/base/machine_file.h"
#include "dovetail/jobs/speed.h"

namespace dovetail::jobs {

/// Histories of speeds from one process to the next, for each machine (processor, instruction set,
/// cores). Keys say what was run, on what (see Runtime).
class SpeedStore {
 public:
  /// As MachineFile; UserError also for entries that are no times.
  explicit SpeedStore(const std::filesystem::path& folder);

  /// An empty one where there is none.
  SpeedHistory find(const std::string& key) const;
  void put(const std::string& key, const SpeedHistory& history);
  void save() { file_.save(); }
  const std::filesystem::path& file() const { return file_.file(); }

 private:
  MachineFile file_;
};

}  // namespace dovetail::jobs
