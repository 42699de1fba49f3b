#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/io/checkpoint_manifest.h"
#include "dovetail/io/safetensors.h"

namespace dovetail::io {
namespace {

namespace fs = std::filesystem;

/// Opens a checkpoint of a chain. Its files must hold what the manifest says.
StoredCheckpoint::Link open_link(const fs::path& path, CheckpointManifest& manifest) {
  verify_files(path, manifest);
  StoredCheckpoint::Link link{.step = manifest.step, .rows_of = std::move(manifest.rows_of)};
  for (const auto& file : manifest.files) {
    const auto tensors = std::make_shared<const SafetensorsFile>(path / file.name);
    user_check(tensors->names() == file.tensors,
               "{}: {} holds other tensors than the manifest says", path.string(), file.name);
    for (const auto& name : file.tensors)
      user_check(link.files.emplace(name, tensors).second, "{}: tensor '{}' is in two files",
                 path.string(), name);
  }
  return link;
}

using RowsOf = std::map<std::string, std::string>;

/// Returns the tensor with the keys of a tensor's rows, or the tensor itself if it holds keys.
/// Empty if rows have numbers only.
std::string keys_of(const RowsOf& rows_of, const std::string& name) {
  const std::string& numbers = rows_of.at(name);
  if (rows_of.contains(numbers)) return numbers;
  const bool are_keys =
      std::ranges::any_of(rows_of, [&](const auto& rows) { return rows.second == name; });
  return are_keys ? name : "";
}

/// Throws UserError unless `link` has rows that fit a tensor which the first link has as a whole.
void check_rows(const fs::path& path, const StoredCheckpoint::Link& link, const std::string& name,
                const StoredCheckpoint::Link& first) {
  const std::vector<int64_t> whole = first.files.at(name)->shape(name);
  const std::string& numbers = link.rows_of.at(name);
  user_check(link.files.contains(name) && link.files.contains(numbers),
             "{}: rows of '{}' are missing", path.string(), name);
  const std::vector<int64_t> shape = link.files.at(name)->shape(name),
                             rows = link.files.at(numbers)->shape(numbers);
  // The numbers of keys are removed keys, so their counts may differ.
  const bool are_keys = keys_of(link.rows_of, name) == name;
  user_check(link.files.at(numbers)->dtype(numbers) == at::kLong && rows.size() == 1 &&
                 !shape.empty() && shape.size() == whole.size() &&
                 (are_keys || shape[0] == rows[0]) &&
                 std::equal(shape.begin() + 1, shape.end(), whole.begin() + 1) &&
                 link.files.at(name)->dtype(name) == first.files.at(name)->dtype(name),
             "{}: rows of '{}' do not fit to the checkpoint that they change", path.string(), name);
}

/// Position of a key's row.
struct KeyPlace {
  uint64_t key;
  size_t link;
  int64_t row;
};

/// Positions of the keys of a link, ascending. Throws UserError if they do not ascend.
std::vector<KeyPlace> places_of(const std::vector<StoredCheckpoint::Link>& links, size_t link,
                                const std::string& keys) {
  const at::Tensor tensor = links[link].files.at(keys)->read(keys);
  std::vector<KeyPlace> places;
  for (int64_t row = 0; row < tensor.numel(); ++row)
    places.push_back({static_cast<uint64_t>(tensor.const_data_ptr<int64_t>()[row]), link, row});
  user_check(
      std::ranges::adjacent_find(places, std::greater_equal(), &KeyPlace::key) == places.end(),
      "{}: the keys '{}' do not ascend", step_name(links[link].step), keys);
  return places;
}

std::vector<KeyPlace> without(const std::vector<KeyPlace>& places,
                              const std::vector<KeyPlace>& others) {
  std::vector<KeyPlace> left;
  std::ranges::set_difference(places, others, std::back_inserter(left), {}, &KeyPlace::key,
                              &KeyPlace::key);
  return left;
}

/// Positions of all rows of a chain's tensors, ascending by key.
std::vector<KeyPlace> merged_keys(const std::vector<StoredCheckpoint::Link>& links,
                                  const std::string& keys) {
  const std::string& removed = links.back().rows_of.at(keys);
  std::vector<KeyPlace> all = places_of(links, 0, keys);
  for (size_t i = 1; i < links.size(); ++i) {
    const std::vector<KeyPlace> gone = places_of(links, i, removed),
                                fresh = places_of(links, i, keys);
    user_check(std::ranges::includes(all, gone, {}, &KeyPlace::key, &KeyPlace::key),
               "{}: '{}' has keys that {} does not have", step_name(links[i].step), removed,
               step_name(links[i - 1].step));
    std::vector<KeyPlace> merged;
    std::ranges::merge(without(without(all, gone), fresh), fresh, std::back_inserter(merged), {},
                       &KeyPlace::key, &KeyPlace::key);
    all = std::move(merged);
  }
  return all;
}

/// Same for row numbers, which are only added.
std::vector<KeyPlace> merged_numbers(const std::vector<StoredCheckpoint::Link>& links,
                                     const std::string& numbers) {
  std::vector<KeyPlace> all = places_of(links, 0, numbers);
  for (size_t i = 1; i < links.size(); ++i) {
    const std::vector<KeyPlace> fresh = places_of(links, i, numbers);
    std::vector<KeyPlace> merged;
    std::ranges::merge(without(all, fresh), fresh, std::back_inserter(merged), {}, &KeyPlace::key,
                       &KeyPlace::key);
    all = std::move(merged);
  }
  return all;
}

at::Tensor read_places(const std::vector<StoredCheckpoint::Link>& links, const std::string& name,
                       const std::vector<KeyPlace>& all) {
  std::vector<std::vector<int64_t>> rows(links.size()), places(links.size());
  for (size_t i = 0; i < all.size(); ++i) {
    rows[all[i].link].push_back(all[i].row);
    places[all[i].link].push_back(static_cast<int64_t>(i));
  }
  std::vector<int64_t> shape = links.front().files.at(name)->shape(name);
  shape[0] = std::ssize(all);
  at::Tensor whole = at::empty(shape, links.front().files.at(name)->dtype(name));
  for (size_t i = 0; i < links.size(); ++i)
    whole.index_copy_(
        0, at::tensor(places[i], at::kLong),
        links[i].files.at(name)->read(name).index_select(0, at::tensor(rows[i], at::kLong)));
  return whole;
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
    if (earlier < *step && verifies(path))
      return fmt::format("the earlier {} verifies: use that one", path.string());
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
      user_check(manifest.checksum == base->checksum,
                 "{}: another one than when the delta was written", at.string());
      links_.push_back(open_link(at, manifest));
    } catch (const UserError& error) {
      throw UserError(fmt::format("{} builds on {}, which cannot be used: {}",
                                  paths.back().string(), step_name(base->step), error.what()),
                      error.help());
    }
    paths.push_back(at);
  }
  std::ranges::reverse(links_);
  std::ranges::reverse(paths);
  for (const auto& [name, rows] : links_.front().rows_of) {
    user_check(links_.front().files.contains(name), "{}: rows of '{}' are missing",
               paths[0].string(), name);
    check_rows(paths[0], links_.front(), name, links_.front());
  }
  for (size_t i = 1; i < links_.size(); ++i) {
    user_check(links_[i].rows_of == links_.back().rows_of, "{}: rows of other tensors than in {}",
               paths[i].string(), paths.back().string());
    for (const auto& [name, rows] : links_[i].rows_of) {
      const auto whole = links_.front().files.find(name);
      user_check(whole != links_.front().files.end(), "{}: rows of '{}', which {} does not have",
                 paths[i].string(), name, paths.front().string());
      check_rows(paths[i], links_[i], name, links_.front());
      const auto some = links_.front().rows_of.find(name);
      user_check(some == links_.front().rows_of.end() || some->second == rows,
                 "{}: rows of '{}' do not go by '{}'", paths[i].string(), name, rows);
    }
  }
}

/// Returns true for row numbers of a tensor that the first link does not have as a whole.
bool StoredCheckpoint::numbers_rows(const std::string& name) const {
  return std::ranges::any_of(links_.front().rows_of,
                             [&](const auto& rows) { return rows.second == name; });
}

std::vector<std::string> StoredCheckpoint::names() const {
  const Link& newest = links_.back();
  std::set<std::string> numbers;
  for (const auto& [name, rows] : newest.rows_of)
    if (!newest.rows_of.contains(rows) && !numbers_rows(rows)) numbers.insert(rows);
  std::vector<std::string> names;
  for (const auto& [name, file] : newest.files)
    if (!numbers.contains(name)) names.push_back(name);
  return names;
}

at::Tensor StoredCheckpoint::read(const std::string& name) const {
  const Link& newest = links_.back();
  const auto found = newest.files.find(name);
  user_check(found != newest.files.end(), "the checkpoint of step {} has no tensor '{}'", step(),
             name);
  if (numbers_rows(name)) return read_places(links_, name, merged_numbers(links_, name));
  if (const auto some = links_.front().rows_of.find(name); some != links_.front().rows_of.end())
    return read_places(links_, name, merged_numbers(links_, some->second));
  if (!newest.rows_of.contains(name)) return found->second->read(name);
  if (const std::string keys = keys_of(newest.rows_of, name); !keys.empty())
    return read_places(links_, name, merged_keys(links_, keys));
  at::Tensor whole = links_.front().files.at(name)->read(name);
  for (size_t i = 1; i < links_.size(); ++i) {
    const std::string& rows = links_[i].rows_of.at(name);
    whole.index_copy_(0, links_[i].files.at(rows)->read(rows),
                      links_[i].files.at(name)->read(name));
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
        fmt::format("none of the {} checkpoints in {} can be used (the reasons are above)", found,
                    folder.string()),
        "restore one, or rename the folder to start afresh");
  return std::nullopt;
}

Snapshot read_latest_checkpoint(const fs::path& folder) {
  const std::optional<StoredCheckpoint> latest = latest_checkpoint(folder);
  return latest ? latest->snapshot() : Snapshot{.step = -1};
}

}  // namespace dovetail::io
