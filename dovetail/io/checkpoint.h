#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/io/safetensors.h"
#include "dovetail/io/streamed_tensors.h"

namespace dovetail::io {

/// Content of a checkpoint: named tensors (parameters, optimizer moments) and the training state.
struct Snapshot {
  int64_t step = 0;
  std::map<std::string, at::Tensor> tensors;  ///< "model.<name>", "optimizer.m.<name>", ...
  /// Config, topology, data position, metrics offset, RNG seed. Finite numbers only.
  nlohmann::json state;
};

/// Kind of a checkpoint. A full one can be read alone. It may hold only some rows of a large
/// tensor, with their row numbers, if the reader knows the other rows. A delta holds the rows that
/// changed since the previous checkpoint, which it needs.
enum class CheckpointKind { kFull, kDelta };

/// Checkpoints of one run: `<folder>/step-00001200/{manifest.json,
/// tensors-00001-of-00002.safetensors, ...}`.
///
/// A save is written into `.step-00001200.partial`. Every file and the folder are synced. Then the
/// folder is renamed and `<folder>` synced. So a folder with a final name is always complete, even
/// if the process is killed or the power fails. A step that exists already is exchanged for the new
/// one. After a save of step s, the newest `keep` steps up to s remain, with the checkpoints that
/// they build on. Later steps, from a run that went back, are not touched. Only one process writes
/// (rank 0).
class CheckpointFolder {
 public:
  struct Options {
    int64_t keep = 3;  ///< at least 1
    /// Maximum data bytes of a file. A larger tensor gets a file of its own.
    int64_t shard_bytes = int64_t{2} << 30;
  };
  /// Creates `folder` only when a save needs it.
  CheckpointFolder(std::filesystem::path folder, Options options);
  /// Waits for a save in progress. Logs its failure as a warning.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  /// Removes leftovers of killed saves. Call once before the first save of a process.
  void clean();

  /// Begins a save whose largest tensors are written first, while the caller waits. If a save is in
  /// progress, waits for it and throws its failure. A delta builds on the previous save of this
  /// process. The caller fills the returned object, then calls save_async for the same step. That
  /// call throws what cannot be saved. `wait` throws errors of the disk.
  StreamedTensors& begin(int64_t step, CheckpointKind kind);

  /// Writes a checkpoint on a thread, which frees the tensors file by file. Tensors that somebody
  /// else holds are copied first, so training can continue. If a save is in progress, waits for it.
  /// If that save failed, throws its failure and starts no new one. Throws UserError that names a
  /// tensor with a NaN or an infinity; nothing is written then.
  void save_async(Snapshot snapshot);
  /// Waits for the save in progress and throws its UserError: a full disk, no permission. Earlier
  /// checkpoints are untouched.
  void wait();

  /// Steps with a final name, ascending.
  std::vector<int64_t> steps() const;
  std::filesystem::path path_of(int64_t step) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Checkpoint that verifies, with all checkpoints that it builds on. Checks format, version and
/// checksum of each manifest, and size, sha256 and tensor names of each file. Tensors are read on
/// request.
class StoredCheckpoint {
 public:
  /// Throws UserError with the reason. It names the checkpoint of the chain that is at fault.
  explicit StoredCheckpoint(const std::filesystem::path& path);

  /// Checkpoint of the chain. The full one comes first, then deltas in the order in which they
  /// apply.
  struct Link {
    int64_t step = 0;
    /// File that holds each tensor.
    std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
    /// CheckpointManifest::rows_of. In the first link, tensors that lack some rows.
    std::map<std::string, std::string> rows_of;
  };
  const std::vector<Link>& links() const { return links_; }
  int64_t step() const { return links_.back().step; }
  const nlohmann::json& state() const { return state_; }

  /// Names of the tensors, ascending. If a tensor has only some rows, the tensor of their numbers
  /// is listed, too.
  std::vector<std::string> names() const;
  /// Returns a tensor with the rows of all deltas. Rows that were never saved are absent. Throws
  /// UserError for an unknown name.
  at::Tensor read(const std::string& name) const;
  /// Reads all tensors and the state.
  Snapshot snapshot() const;

 private:
  bool numbers_rows(const std::string& name) const;

  std::vector<Link> links_;
  nlohmann::json state_;
};

/// Reads a whole checkpoint. Throws UserError as StoredCheckpoint does. `help()` of the error
/// offers the newest earlier step in the same folder that verifies.
Snapshot read_checkpoint(const std::filesystem::path& path);

/// Returns the newest checkpoint in `folder` that verifies, with all checkpoints that it builds on.
/// Logs a warning about each rejected one. Returns nullopt if there are no checkpoints. Throws
/// UserError if there are some and none verifies: a fresh start would discard a run without being
/// asked.
std::optional<StoredCheckpoint> latest_checkpoint(const std::filesystem::path& folder);

/// Reads the latest checkpoint as a whole. Its step is -1 if there are no checkpoints.
Snapshot read_latest_checkpoint(const std::filesystem::path& folder);

}  // namespace dovetail::io
