#include "dovetail/io/checkpoint.h"

#include <ATen/ops/aminmax.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <future>
#include <system_error>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/io/manifest.h"
#include "dovetail/io/safetensors.h"

namespace dovetail {
namespace {

namespace fs = std::filesystem;

/// NaN and infinity both come through the minimum or the maximum: one pass over memory and no temporary.
bool all_finite(const at::Tensor& tensor) {
  if (!tensor.is_floating_point() || tensor.numel() == 0) return true;
  const bool narrow = tensor.element_size() < 2;  // no reductions over 8-bit floats in ATen
  const auto [low, high] = at::aminmax(narrow ? tensor.to(at::kFloat) : tensor);
  return std::isfinite(low.item<double>()) && std::isfinite(high.item<double>());
}

std::map<std::string, at::Tensor> finite_copies(const Snapshot& snapshot) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& [name, tensor] : snapshot.tensors) {
    DOVETAIL_CHECK(tensor.defined(), "checkpoint: tensor '{}' is undefined", name);
    if (!all_finite(tensor))
      throw UserError(fmt::format("checkpoint of step {} refused: '{}' has a NaN or an infinity", snapshot.step, name),
                      "the run has diverged; go on from the last checkpoint, with a lower learning rate or clipping");
    copies.emplace(
        name, tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true).contiguous());
  }
  return copies;
}

/// Names in order, cut into files of at most `shard_bytes`.
std::vector<std::vector<std::string>> shards_of(const std::map<std::string, at::Tensor>& tensors, int64_t shard_bytes) {
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

/// Puts `partial` in the place of `final_path`, at no moment leaving something unfinished under that name.
void publish(const fs::path& partial, const fs::path& final_path) {
  if (!fs::exists(final_path)) return rename_or_throw(partial, final_path);
  if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) != 0) {
    user_check(errno == EINVAL || errno == ENOSYS, "cannot replace {}: {}", final_path.string(), std::strerror(errno));
    // A file system without exchange (NFS): the old one steps aside under a name that `clean` removes.
    const auto aside = final_path.parent_path() / fmt::format(".{}.old.partial", final_path.filename().string());
    remove_folder(aside);
    rename_or_throw(final_path, aside);
    rename_or_throw(partial, final_path);
    remove_folder(aside);
    return;
  }
  sync_folder(final_path.parent_path());
  remove_folder(partial);
}

/// Renamed before it is emptied, so that a kill half-way leaves no partial folder under a final name.
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

  void write(CheckpointManifest manifest, std::map<std::string, at::Tensor> tensors) const;
  void write_whole(CheckpointManifest& manifest, std::map<std::string, at::Tensor>& tensors,
                   const fs::path& partial) const;
  void prune(int64_t newest) const;
};

void CheckpointFolder::State::write_whole(CheckpointManifest& manifest, std::map<std::string, at::Tensor>& tensors,
                                          const fs::path& partial) const {
  remove_folder(partial);
  std::error_code error;
  fs::create_directories(partial, error);
  user_check(!error, "cannot make {}: {}", partial.string(), error.message());
  const auto shards = shards_of(tensors, options.shard_bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    std::map<std::string, at::Tensor> shard;
    for (const auto& name : shards[i]) shard.insert(tensors.extract(name));
    ManifestFile file{.name = fmt::format("tensors-{:05}-of-{:05}.safetensors", i + 1, shards.size()),
                      .tensors = shards[i]};
    file.sha256 = write_safetensors(partial / file.name, shard);
    file.bytes = fs::file_size(partial / file.name);
    manifest.files.push_back(std::move(file));
  }
  write_file_atomically(partial / "manifest.json", manifest_text(manifest));
  sync_folder(partial);
  publish(partial, folder / step_name(manifest.step));
  sync_folder(folder);
}

void CheckpointFolder::State::write(CheckpointManifest manifest, std::map<std::string, at::Tensor> tensors) const {
  const auto partial = folder / fmt::format(".{}.partial", step_name(manifest.step));
  const int64_t step = manifest.step;
  try {
    write_whole(manifest, tensors, partial);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove_all(partial, ignored);  // gives a full disk its space back
    const auto kept = steps_in(folder);
    throw UserError(fmt::format("the checkpoint of step {} was not written: {}", step, error.what()),
                    kept.empty()
                        ? fmt::format("free space in {} or choose another folder", folder.string())
                        : fmt::format("free space in {}; its earlier checkpoints are untouched, the newest is {}",
                                      folder.string(), step_name(kept.back())));
  }
  try {
    prune(step);
  } catch (const UserError& error) {
    log_warning("the checkpoint of step {} is saved, but an old one stays: {}", step, error.what());
  }
}

void CheckpointFolder::State::prune(int64_t newest) const {
  auto steps = steps_in(folder);
  std::erase_if(steps, [&](int64_t step) { return step > newest; });
  for (size_t i = 0; i + static_cast<size_t>(options.keep) < steps.size(); ++i)
    remove_checkpoint(folder / step_name(steps[i]));
}

CheckpointFolder::CheckpointFolder(fs::path folder, Options options) : state_(std::make_unique<State>()) {
  user_check(options.keep >= 1, "checkpoint.keep is {}, but at least one checkpoint must stay", options.keep);
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

void CheckpointFolder::save_async(const Snapshot& snapshot) {
  wait();
  DOVETAIL_CHECK(snapshot.step >= 0, "step is {}", snapshot.step);
  CheckpointManifest manifest{.step = snapshot.step, .state = snapshot.state};
  manifest_text(manifest);  // a state that cannot be written is told here, before tensors are copied
  state_->save = std::async(std::launch::async, [state = state_.get(), manifest = std::move(manifest),
                                                 tensors = finite_copies(snapshot)]() mutable {
    state->write(std::move(manifest), std::move(tensors));
  });
}

void CheckpointFolder::wait() {
  if (state_->save.valid()) state_->save.get();
}

std::vector<int64_t> CheckpointFolder::steps() const { return steps_in(state_->folder); }
fs::path CheckpointFolder::path_of(int64_t step) const { return state_->folder / step_name(step); }

}  // namespace dovetail
