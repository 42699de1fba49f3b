#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "dovetail/base/machine_file.h"
#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// What was measured of operations, for each processor, instruction set, number of threads, version
/// of torch and build of our kernels.
class ProfileCache : public MachineFile {
 public:
  /// As MachineFile.
  explicit ProfileCache(const std::filesystem::path& folder);

  /// $DOVETAIL_CACHE, $XDG_CACHE_HOME/dovetail or ~/.cache/dovetail, and there "profiles".
  static std::filesystem::path default_folder();
};

/// What operations are, as text: names, and of each argument the sizes, strides and dtype, or the
/// value. Nothing where one has a value that cannot be compared: a body of ours (base/operation.h).
std::optional<std::string> key_of(std::span<const CapturedOperation> operations);

}  // namespace dovetail::plan
