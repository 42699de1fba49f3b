#include "dovetail/train/run/stored_run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::train {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path))
    throw UserError(fmt::format("{} does not exist", path.string()),
                    "give a run's folder (runs/<name>) or one of its checkpoints");
  throw UserError(
      fmt::format("{} holds no checkpoint", path.string()),
      "give a run's folder (runs/<name>) or one of its checkpoints. A run saves the "
      "first one after checkpoint.every_steps steps or when it ends, and none if that key is 0");
}

}  // namespace

StoredRun stored_run(io::Snapshot snapshot, std::filesystem::path checkpoint) {
  StoredRun stored = {.snapshot = std::move(snapshot), .checkpoint = std::move(checkpoint)};
  const std::string name = stored.checkpoint.string();
  const nlohmann::json& state = stored.snapshot.state;
  user_check(
      state.is_object() && state.contains("config") && state.contains("tokenizer"),
      "{}: its manifest holds no config and tokenizer; it is not a checkpoint of a training run",
      name);
  config_from_json([&](Section& s) { stored.config.describe(s); }, state["config"], name);
  moe::forget_unread_scope(stored.config.model.moe);
  return stored;
}

StoredRun read_run_or_checkpoint(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  if (fs::exists(path / "manifest.json")) {
    return stored_run(io::read_checkpoint(path), path);
  }
  if (fs::is_directory(path / "checkpoints")) {
    io::Snapshot snapshot = io::read_latest_checkpoint(path / "checkpoints");
    if (snapshot.step >= 0) {
      const fs::path checkpoint =
          io::CheckpointFolder(path / "checkpoints", {}).path_of(snapshot.step);
      return stored_run(std::move(snapshot), checkpoint);
    }
  }
  refuse(path);
}

io::StoredCheckpoint open_run_or_checkpoint(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "manifest.json")) return io::StoredCheckpoint(path);
  std::optional<io::StoredCheckpoint> latest = io::latest_checkpoint(path / "checkpoints");
  if (!latest) refuse(path);
  return std::move(*latest);
}

}  // namespace dovetail::train
