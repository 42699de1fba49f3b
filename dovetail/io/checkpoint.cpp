#include "dovetail/io/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <iterator>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/io/checkpoint_manifest.h"
#include "dovetail/io/safetensors.h"

namespace dovetail::io {
namespace {

namespace fs = std::filesystem;

/// Checks that all tensors are finite. Returns dense tensors on the CPU. With `own`, nobody else
/// can change them: they are tensors that only the snapshot holds, and copies of the others.
std::map<std::string, at::Tensor> finite_tensors(Snapshot snapshot, bool own) {
  for (auto& [name, tensor] : snapshot.tensors) {
    DOVETAIL_CHECK(tensor.defined(), "checkpoint: tensor '{}' is undefined", name);
    check_finite(name, tensor, snapshot.step);
    const bool is_own = tensor.is_cpu() && tensor.is_contiguous() && tensor.use_count() == 1 &&
                        tensor.storage().use_count() == 1 && !tensor.requires_grad();
    if (!is_own)
      tensor = tensor.detach()
                   .to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/own)
                   .contiguous();
  }
  return std::move(snapshot.tensors);
}

/// Splits names, in order, into files of at most `shard_bytes`.
std::vector<std::vector<std::string>> shards_of(const std::map<std::string, at::Tensor>& tensors,
                                                int64_t shard_bytes) {
  std::vector<std::vector<std::string>> shards;
  int64_t used = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (shards.empty() || used + bytes > shard_bytes) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(name);
    used += bytes;
  }
  return shards;
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  user_check(!error, "cannot rename {} to {}: {}", from.string(), to.string(), error.message());
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  user_check(!error, "cannot remove {}: {}", folder.string(), error.message());
}

/// Replaces `final_path` by `partial`. At no moment is anything unfinished under the final name.
void publish(const fs::path& partial, const fs::path& final_path) {
  if (!fs::exists(final_path)) return rename_or_throw(partial, final_path);
  if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) != 0) {
    user_check(errno == EINVAL || errno == ENOSYS, "cannot replace {}: {}", final_path.string(),
               std::strerror(errno));
    // A file system without exchange (NFS): the old folder gets a temporary name, which `clean`
    // removes.
    const auto aside =
        final_path.parent_path() / fmt::format(".{}.old.partial", final_path.filename().string());
    remove_folder(aside);
    rename_or_throw(final_path, aside);
    rename_or_throw(partial, final_path);
    remove_folder(aside);
    return;
  }
  sync_folder(final_path.parent_path());
  remove_folder(partial);
}

void make_empty_folder(const fs::path& folder) {
  remove_folder(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  user_check(!error, "cannot make {}: {}", folder.string(), error.message());
}

/// Adds the checkpoints that deltas in `kept` build on. A checkpoint with an unreadable manifest
/// cannot be used, so it adds nothing.
std::set<int64_t> with_bases(const fs::path& folder, std::set<int64_t> kept) {
  for (auto newest = kept.rbegin(); newest != kept.rend(); ++newest) {
    try {
      if (const auto base = read_manifest(folder / step_name(*newest)).base)
        kept.insert(base->step);
    } catch (const UserError&) {
      continue;
    }
  }
  return kept;
}

/// Removes a checkpoint. It is renamed first: a kill half-way leaves no partial folder under a
/// final name.
void remove_checkpoint(const fs::path& path) {
  const auto aside = path.parent_path() / fmt::format(".{}.old.partial", path.filename().string());
  remove_folder(aside);
  rename_or_throw(path, aside);
  remove_folder(aside);
}

}  // namespace

struct CheckpointFolder::State {
  fs::path folder;
  Options options;
  std::future<void> save;
  std::optional<StreamedTensors> streamed;  ///< tensors of the save that has begun
  std::optional<ManifestBase> base;         ///< base of the same save
  std::optional<ManifestBase> saved;        ///< the last save; only on process 0

  fs::path partial_of(int64_t step) const {
    return folder / fmt::format(".{}.partial", step_name(step));
  }
  bool is_first() const { return !options.writers || options.writers->rank() == 0; }
  /// Returns the beginning of the names of this process's files.
  std::string prefix() const {
    return is_first() ? "" : fmt::format("rank-{:05}-", options.writers->rank());
  }
  /// Runs `work` as CheckpointWriters::together does.
  std::vector<std::string> together(const std::function<std::string()>& work) const {
    return options.writers ? options.writers->together(work) : std::vector{work()};
  }
  /// Runs `work` on process 0.
  void on_first(const std::function<void()>& work) const {
    together([&] {
      if (is_first()) work();
      return std::string();
    });
  }
  void write(CheckpointManifest manifest, std::map<std::string, at::Tensor> tensors);
  /// Writes this process's files. Returns part_text about them.
  std::string write_files(int64_t step, std::map<std::string, at::Tensor>& tensors);
  /// Gives the checkpoint its final name.
  void finish(CheckpointManifest& manifest) const;
  /// Frees the disk space of a failed save.
  void abandon(int64_t step);
  UserError not_written(int64_t step, const char* reason) const;
  void prune(int64_t newest) const;
};

void CheckpointFolder::State::abandon(int64_t step) {
  streamed.reset();
  base.reset();
  if (!is_first()) return;
  std::error_code ignored;
  fs::remove_all(partial_of(step), ignored);
}

UserError CheckpointFolder::State::not_written(int64_t step, const char* reason) const {
  const auto kept = steps_in(folder);
  return UserError(
      fmt::format("the checkpoint of step {} was not written: {}", step, reason),
      kept.empty()
          ? fmt::format("free space in {} or choose another folder", folder.string())
          : fmt::format("free space in {}; its earlier checkpoints are untouched, the newest is {}",
                        folder.string(), step_name(kept.back())));
}

std::string CheckpointFolder::State::write_files(int64_t step,
                                                 std::map<std::string, at::Tensor>& tensors) {
  const fs::path partial = partial_of(step);
  CheckpointManifest part{.step = step};
  if (streamed) {
    streamed->finish(part);
  } else {
    make_empty_folder(partial);
  }
  const auto shards = shards_of(tensors, options.shard_bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    std::map<std::string, at::Tensor> shard;
    for (const auto& name : shards[i]) shard.insert(tensors.extract(name));
    ManifestFile file{
        .name = fmt::format("{}tensors-{:05}-of-{:05}.safetensors", prefix(), i + 1, shards.size()),
        .tensors = shards[i]};
    file.sha256 = write_safetensors(partial / file.name, shard);
    file.bytes = fs::file_size(partial / file.name);
    part.files.push_back(std::move(file));
  }
  return part_text(part);
}

void CheckpointFolder::State::finish(CheckpointManifest& manifest) const {
  const fs::path partial = partial_of(manifest.step);
  write_file_atomically(partial / "manifest.json", manifest_text(manifest));
  sync_folder(partial);
  publish(partial, folder / step_name(manifest.step));
  sync_folder(folder);
}

void CheckpointFolder::State::write(CheckpointManifest manifest,
                                    std::map<std::string, at::Tensor> tensors) {
  const int64_t step = manifest.step;
  try {
    for (const std::string& part : together([&] { return write_files(step, tensors); }))
      add_part(manifest, part);
    on_first([&] { finish(manifest); });
  } catch (const std::exception& error) {
    abandon(step);
    const bool a_process_died =
        options.writers && dynamic_cast<const UserError*>(&error) == nullptr;
    if (a_process_died) throw;
    throw not_written(step, error.what());
  }
  streamed.reset();
  base.reset();
  if (!is_first()) return;
  saved = {.step = step, .checksum = manifest.checksum};
  try {
    prune(step);
  } catch (const UserError& error) {
    log_warning("the checkpoint of step {} is saved, but an old one stays: {}", step, error.what());
  }
}

void CheckpointFolder::State::prune(int64_t newest) const {
  const std::vector<int64_t> steps = steps_in(folder);
  const auto later = std::ranges::upper_bound(steps, newest);
  std::set<int64_t> kept(later - std::min<int64_t>(options.keep, later - steps.begin()),
                         steps.end());
  kept = with_bases(folder, std::move(kept));
  // Remove a delta before its base: a kill in between leaves no chain without its beginning.
  for (auto step = std::make_reverse_iterator(later); step != steps.rend(); ++step)
    if (!kept.contains(*step)) remove_checkpoint(folder / step_name(*step));
}

CheckpointFolder::CheckpointFolder(fs::path folder, Options options)
    : state_(std::make_unique<State>()) {
  user_check(options.keep >= 1, "checkpoint.keep is {}, but at least one checkpoint must stay",
             options.keep);
  DOVETAIL_CHECK(options.shard_bytes > 0, "shard_bytes is {}", options.shard_bytes);
  state_->folder = std::move(folder);
  state_->options = options;
}

CheckpointFolder::~CheckpointFolder() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_warning("{}", error.what());
  }
}

void CheckpointFolder::clean() {
  if (fs::is_directory(state_->folder)) remove_leftovers(state_->folder);
}

StreamedTensors& CheckpointFolder::begin(int64_t step, CheckpointKind kind) {
  wait();
  DOVETAIL_CHECK(kind == CheckpointKind::kFull || state_->saved || !state_->is_first(),
                 "a delta of step {} builds on no save", step);
  state_->base = kind == CheckpointKind::kDelta ? state_->saved : std::nullopt;
  try {
    state_->on_first([&] { make_empty_folder(state_->partial_of(step)); });
  } catch (const UserError& error) {
    throw state_->not_written(step, error.what());
  }
  return state_->streamed.emplace(
      state_->partial_of(step), step,
      state_->options.beside_training ? state_->options.copied_bytes : 0, state_->prefix());
}

void CheckpointFolder::save(Snapshot snapshot) {
  wait();
  DOVETAIL_CHECK(snapshot.step >= 0, "step is {}", snapshot.step);
  DOVETAIL_CHECK(state_->streamed || !state_->options.writers,
                 "several processes save step {} without `begin`", snapshot.step);
  CheckpointManifest manifest{.step = snapshot.step, .state = snapshot.state, .base = state_->base};
  std::map<std::string, at::Tensor> tensors;
  try {
    state_->together([&] {
      if (state_->streamed) state_->streamed->check();
      // Throws here if the state cannot be written, before tensors are copied.
      manifest_text(manifest);
      tensors = finite_tensors(std::move(snapshot), /*own=*/state_->options.beside_training);
      return std::string();
    });
  } catch (const std::exception&) {
    if (state_->streamed) state_->abandon(manifest.step);
    throw;
  }
  if (!state_->options.beside_training)
    return state_->write(std::move(manifest), std::move(tensors));
  state_->save =
      std::async(std::launch::async, [state = state_.get(), manifest = std::move(manifest),
                                      tensors = std::move(tensors)]() mutable {
        state->write(std::move(manifest), std::move(tensors));
      });
}

void CheckpointFolder::wait() {
  if (state_->save.valid()) state_->save.get();
}

std::vector<int64_t> CheckpointFolder::steps() const { return steps_in(state_->folder); }
fs::path CheckpointFolder::path_of(int64_t step) const { return state_->folder / step_name(step); }

}  // namespace dovetail::io
