#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "dovetail/base/machine_file.h"
#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Stored measurements of operations, such as their durations, by key (key_of). There is one file
/// for each processor, instruction set, number of threads, torch version and build of our kernels.
class ProfileCache : public MachineFile {
 public:
  /// Reads this machine's file in `folder`, see MachineFile. With an empty `folder`, nothing is
  /// read or stored.
  explicit ProfileCache(const std::filesystem::path& folder);

  /// Returns the folder "profiles" in $DOVETAIL_CACHE, $XDG_CACHE_HOME/dovetail or
  /// ~/.cache/dovetail.
  static std::filesystem::path default_folder();
};

/// Returns a text that identifies a sequence of operations in the cache. It has the names of the
/// operations and their arguments. A tensor argument is described by sizes, strides and dtype, any
/// other argument by its value. Returns nullopt if a value cannot be compared, such as an operation
/// body (base/operation.h).
std::optional<std::string> key_of(std::span<const CapturedOperation> operations);

}  // namespace dovetail::plan
