#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dovetail {

/// What a checkpoint holds: named tensors (parameters, optimizer moments) and the state around them.
struct Snapshot {
  int64_t step = 0;
  std::map<std::string, at::Tensor> tensors;  ///< "model.<name>", "optimizer.m.<name>", ...
  nlohmann::json state;                       ///< config, topology, data position, metrics offset, RNG seed
};

/// Checkpoints of one run: `<folder>/step-00001200/{manifest.json, tensors-00001-of-00002.safetensors, ...}`.
///
/// A save is written into `.step-00001200.partial`, every file and the folder synced, then renamed; so a folder
/// with a final name is always whole. The newest `keep` stay. Files of at most `shard_bytes`.
class CheckpointFolder {
 public:
  struct Options {
    int64_t keep = 3;
    int64_t shard_bytes = int64_t{2} << 30;
  };
  CheckpointFolder(std::filesystem::path folder, Options options);
  ~CheckpointFolder();  ///< waits for a save in progress

  /// Removes leftovers of killed saves. Call once before the first save of a process.
  void clean();

  /// Copies the tensors (so training goes on) and writes on a thread. A save in progress is waited for first. Throws UserError
  /// (its or the previous one's failure: a full disk loses no earlier checkpoint), and refuses non-finite tensors.
  void save_async(const Snapshot& snapshot);
  void wait();

  /// Steps with a final name, ascending.
  std::vector<int64_t> steps() const;
  std::filesystem::path path_of(int64_t step) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Read and verify (manifest's version, sizes, sha256 of each file, names). Throws UserError with the reason and, where the
/// folder beside it has an earlier step, offers that one in `help()`.
Snapshot read_checkpoint(const std::filesystem::path& path);

/// The newest checkpoint that verifies in `folder`; warns about each one refused. nullopt-like: step = -1 when there is none.
Snapshot read_latest_checkpoint(const std::filesystem::path& folder);

}  // namespace dovetail
