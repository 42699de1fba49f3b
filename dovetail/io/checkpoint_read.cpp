#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/io/manifest.h"
#include "dovetail/io/safetensors.h"

namespace dovetail {
namespace {

namespace fs = std::filesystem;

/// A checkpoint of a chain with its files, which hold what the manifest says.
StoredCheckpoint::Link open_link(const fs::path& path, CheckpointManifest& manifest) {
  verify_files(path, manifest);
  StoredCheckpoint::Link link{.step = manifest.step, .rows_of = std::move(manifest.rows_of)};
  for (const auto& file : manifest.files) {
    const auto tensors = std::make_shared<const SafetensorsFile>(path / file.name);
    user_check(tensors->names() == file.tensors, "{}: {} holds other tensors than the manifest says", path.string(),
               file.name);
    for (const auto& name : file.tensors)
      user_check(link.files.emplace(name, tensors).second, "{}: tensor '{}' is in two files", path.string(), name);
  }
  return link;
}

/// Rows of `link` for a tensor that the links before have as a whole, of `whole` rows.
void check_rows(const fs::path& path, const StoredCheckpoint::Link& link, const std::string& name,
                const std::vector<int64_t>& whole) {
  const std::string& numbers = link.rows_of.at(name);
  user_check(link.files.contains(name) && link.files.contains(numbers), "{}: rows of '{}' are missing", path.string(),
             name);
  const std::vector<int64_t> shape = link.files.at(name)->shape(name), rows = link.files.at(numbers)->shape(numbers);
  user_check(link.files.at(numbers)->dtype(numbers) == at::kLong && rows.size() == 1 && !shape.empty() &&
                 shape.size() == whole.size() && shape[0] == rows[0] &&
                 std::equal(shape.begin() + 1, shape.end(), whole.begin() + 1),
             "{}: rows of '{}' do not fit to the checkpoint that they change", path.string(), name);
}

bool verifies(const fs::path& path) {
  try {
    const StoredCheckpoint checkpoint(path);
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

StoredCheckpoint::StoredCheckpoint(const fs::path& path) {
  CheckpointManifest manifest = read_manifest(path);
  links_.push_back(open_link(path, manifest));
  state_ = std::move(manifest.state);
  const fs::path folder = fs::absolute(path / "").lexically_normal().parent_path().parent_path();
  std::vector<fs::path> paths = {path};
  while (const std::optional<ManifestBase> base = manifest.base) {
    const fs::path at = folder / step_name(base->step);
    try {
      manifest = read_manifest(at);
      user_check(manifest.checksum == base->checksum, "{}: another one than when the delta was written", at.string());
      links_.push_back(open_link(at, manifest));
    } catch (const UserError& error) {
      throw UserError(fmt::format("{} builds on {}, which cannot be used: {}", paths.back().string(),
                                  step_name(base->step), error.what()),
                      error.help());
    }
    paths.push_back(at);
  }
  std::ranges::reverse(links_);
  std::ranges::reverse(paths);
  for (size_t i = 1; i < links_.size(); ++i) {
    user_check(links_[i].rows_of == links_.back().rows_of, "{}: rows of other tensors than in {}", paths[i].string(),
               paths.back().string());
    for (const auto& [name, rows] : links_[i].rows_of) {
      const auto whole = links_.front().files.find(name);
      user_check(whole != links_.front().files.end(), "{}: rows of '{}', which {} does not have", paths[i].string(),
                 name, paths.front().string());
      check_rows(paths[i], links_[i], name, whole->second->shape(name));
    }
  }
}

std::vector<std::string> StoredCheckpoint::names() const {
  const Link& newest = links_.back();
  std::set<std::string> numbers;
  for (const auto& [name, rows] : newest.rows_of) numbers.insert(rows);
  std::vector<std::string> names;
  for (const auto& [name, file] : newest.files)
    if (!numbers.contains(name)) names.push_back(name);
  return names;
}

at::Tensor StoredCheckpoint::read(const std::string& name) const {
  const Link& newest = links_.back();
  const auto found = newest.files.find(name);
  user_check(found != newest.files.end(), "the checkpoint of step {} has no tensor '{}'", step(), name);
  if (!newest.rows_of.contains(name)) return found->second->read(name);
  at::Tensor whole = links_.front().files.at(name)->read(name);
  for (size_t i = 1; i < links_.size(); ++i) {
    const std::string& rows = links_[i].rows_of.at(name);
    whole.index_copy_(0, links_[i].files.at(rows)->read(rows), links_[i].files.at(name)->read(name));
  }
  return whole;
}

Snapshot StoredCheckpoint::snapshot() const {
  Snapshot snapshot{.step = step(), .state = state_};
  for (const std::string& name : names()) snapshot.tensors.emplace(name, read(name));
  return snapshot;
}

Snapshot read_checkpoint(const fs::path& path) {
  try {
    return StoredCheckpoint(path).snapshot();
  } catch (const UserError& error) {
    throw UserError(error.what(), offer_earlier(path), error.place());
  }
}

std::optional<StoredCheckpoint> latest_checkpoint(const fs::path& folder) {
  auto steps = steps_in(folder);
  const size_t found = steps.size();
  for (; !steps.empty(); steps.pop_back()) {
    try {
      return StoredCheckpoint(folder / step_name(steps.back()));
    } catch (const UserError& error) {
      log_warning("checkpoint refused: {}", error.what());
    }
  }
  if (found > 0)
    throw UserError(
        fmt::format("none of the {} checkpoints in {} can be used (the reasons are above)", found, folder.string()),
        "restore one, or move the folder away to start afresh");
  return std::nullopt;
}

Snapshot read_latest_checkpoint(const fs::path& folder) {
  const std::optional<StoredCheckpoint> latest = latest_checkpoint(folder);
  return latest ? latest->snapshot() : Snapshot{.step = -1};
}

}  // namespace dovetail
