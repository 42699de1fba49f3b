#include <fmt/format.h>

#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/io/manifest.h"
#include "dovetail/io/safetensors.h"

namespace dovetail {
namespace {

namespace fs = std::filesystem;

Snapshot read_verified(const fs::path& path) {
  auto manifest = read_manifest(path);
  verify_files(path, manifest);
  Snapshot snapshot{.step = manifest.step, .state = std::move(manifest.state)};
  for (const auto& file : manifest.files) {
    const SafetensorsFile tensors(path / file.name);
    user_check(tensors.names() == file.tensors, "{}: {} holds other tensors than the manifest says", path.string(),
               file.name);
    for (const auto& name : file.tensors)
      user_check(snapshot.tensors.emplace(name, tensors.read(name)).second, "{}: tensor '{}' is in two files",
                 path.string(), name);
  }
  return snapshot;
}

bool verifies(const fs::path& path) {
  try {
    verify_files(path, read_manifest(path));
    return true;
  } catch (const UserError&) {
    return false;
  }
}

std::string offer_earlier(const fs::path& refused) {
  const auto normal = fs::absolute(refused).lexically_normal();
  const auto step = step_of_name(normal.filename().string());
  if (!step) return {};
  auto steps = steps_in(normal.parent_path());
  while (!steps.empty()) {
    const int64_t earlier = steps.back();
    steps.pop_back();
    const auto path = normal.parent_path() / step_name(earlier);
    if (earlier < *step && verifies(path)) return fmt::format("the earlier {} verifies: use that one", path.string());
  }
  return "there is no earlier checkpoint beside it that verifies";
}

}  // namespace

Snapshot read_checkpoint(const fs::path& path) {
  try {
    return read_verified(path);
  } catch (const UserError& error) {
    throw UserError(error.what(), offer_earlier(path), error.place());
  }
}

Snapshot read_latest_checkpoint(const fs::path& folder) {
  auto steps = steps_in(folder);
  const size_t found = steps.size();
  for (; !steps.empty(); steps.pop_back()) {
    try {
      return read_verified(folder / step_name(steps.back()));
    } catch (const UserError& error) {
      log_warning("checkpoint refused: {}", error.what());
    }
  }
  if (found > 0)
    throw UserError(
        fmt::format("none of the {} checkpoints in {} can be used (the reasons are above)", found, folder.string()),
        "restore one, or move the folder away to start afresh");
  return Snapshot{.step = -1};
}

}  // namespace dovetail
