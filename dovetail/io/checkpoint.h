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

#include "dovetail/io/checkpoint_writers.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/io/streamed_tensors.h"

namespace dovetail::io {

/// Content of a checkpoint: named tensors (parameters, optimizer moments) and the training state.
struct Snapshot {
  int64_t step = 0;                           ///< training step of the checkpoint
  std::map<std::string, at::Tensor> tensors;  ///< "model.<name>", "optimizer.m.<name>", ...
  /// Training state other than tensors: config, topology, data position, metrics offset, RNG seed.
  /// All numbers must be finite.
  nlohmann::json state;
};

/// Kind of a checkpoint.
///
/// - kFull: can be read without another checkpoint. It may store only some rows of a large tensor,
///   with their row numbers. Its reader must then know the values of all other rows. Example: rows
///   of an embedding table that still have their initial values.
/// - kDelta: stores only those rows of large tensors that changed since the previous checkpoint. It
///   stores all other tensors as a whole. It can be read only together with that previous
///   checkpoint, its base.
enum class CheckpointKind { kFull, kDelta };

/// Checkpoints of one run: `<folder>/step-00001200/{manifest.json,
/// tensors-00001-of-00002.safetensors, ...}`.
///
/// A save has these steps:
///
/// 1. Write all files into the temporary folder `.step-00001200.partial`.
/// 2. Sync every file and the temporary folder.
/// 3. Rename the folder to its final name, `step-00001200`. If the step already has a folder, the
///    new folder replaces it.
/// 4. Sync `<folder>`.
/// 5. Remove old checkpoints.
///
/// So a folder with a final name is always complete, even if a process is killed or the power
/// fails.
///
/// With Options::writers, each process writes its own tensors in step 1, and syncs its files. The
/// names of the files of process r > 0 begin with "rank-0000r-". Process 0 does the other steps,
/// after all processes have done step 1. All processes then make the same calls together, and a
/// failure of one is thrown on all. The functions return when the processes have agreed.
///
/// A save of step s keeps these checkpoints and removes the others:
///
/// - the newest `keep` checkpoints with steps up to s
/// - every checkpoint on which a kept delta depends
/// - all checkpoints of later steps, which exist if a run was resumed from an earlier step
class CheckpointFolder {
 public:
  struct Options {
    int64_t keep = 3;  ///< number of newest checkpoints that a save keeps; at least 1
    /// Maximum bytes of tensor data in one file. A tensor of more bytes gets a file of its own.
    int64_t shard_bytes = int64_t{2} << 30;
    /// True: a save copies the tensors, and training continues while they are written. False: a
    /// save takes no memory for copies, and returns when it is written.
    bool beside_training = true;
    /// With beside_training: maximum memory for copies of streamed rows. Rows beyond it are copied
    /// when earlier ones are written.
    int64_t copied_bytes = int64_t{16} << 20;
    /// Processes that write together; null: this one alone. No other object uses it.
    std::shared_ptr<CheckpointWriters> writers = {};
  };
  /// The constructor does not create `folder`; the first save does.
  CheckpointFolder(std::filesystem::path folder, Options options);
  /// Waits for a save in progress. Logs a warning if that save failed.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  /// Removes the temporary folders that saves of killed processes left. Call it once, before the
  /// first save of a process.
  void clean();

  /// Begins a save with tensors that are too large to copy. The caller first writes these tensors
  /// block by block to the returned object. It then calls `save` for the same step, with all
  /// other tensors. Without large tensors, call only `save`. With Options::beside_training, blocks
  /// are copied and a thread writes them.
  ///
  /// Waits if another save is in progress, and throws the error of that save if it failed. A delta
  /// builds on the previous save of this process. `save` throws if a tensor of the returned
  /// object has a NaN or an infinity. `wait` throws if the disk failed. Several processes call it
  /// before each `save`, and each gets an object for tensors of its own.
  StreamedTensors& begin(int64_t step, CheckpointKind kind);

  /// Writes a checkpoint. `snapshot` has this process's tensors. The state counts only on process
  /// 0. With Options::beside_training, a thread of its own writes it. It frees the tensors of each
  /// file after that file is written. First copies each tensor that code outside `snapshot` can
  /// still change.
  ///
  /// Waits if another save is in progress. If that save failed, throws its error and starts no new
  /// save. Throws UserError, naming the tensor, if a tensor has a NaN or an infinity; no checkpoint
  /// is written then. Without Options::beside_training, throws UserError if the disk fails.
  void save(Snapshot snapshot);
  /// Waits for the save in progress. Throws UserError if that save failed, for example on a full
  /// disk or without permission. A failed save leaves earlier checkpoints untouched.
  void wait();

  /// Returns the steps of the complete checkpoints in the folder (with a final name), ascending.
  std::vector<int64_t> steps() const;
  /// Returns the path of the checkpoint of `step`, whether it exists or not.
  std::filesystem::path path_of(int64_t step) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Checkpoint on disk, opened for reading. A delta is opened with its whole chain: the full
/// checkpoint and all deltas after it, up to this one. The constructor checks format, version and
/// checksum of each manifest in the chain. It also checks size, sha256 and tensor names of each
/// file. Tensors are read on request.
class StoredCheckpoint {
 public:
  /// Throws UserError, with the reason, if a checkpoint of the chain fails a check. The error names
  /// that checkpoint.
  explicit StoredCheckpoint(const std::filesystem::path& path);

  /// One checkpoint of the chain.
  struct Link {
    int64_t step = 0;
    /// Map from the name of each tensor to the file that holds it.
    std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
    /// Tensors that this checkpoint stores only in part, as in CheckpointManifest::rows_of.
    std::map<std::string, std::string> rows_of;
  };
  /// Returns the chain: the full checkpoint, then the deltas in the order in which they apply.
  const std::vector<Link>& links() const { return links_; }
  int64_t step() const { return links_.back().step; }
  const nlohmann::json& state() const { return state_; }

  /// Returns the names of the tensors, ascending. If the full checkpoint stores only some rows of a
  /// tensor, a further tensor holds their row numbers. The result includes the name of this further
  /// tensor.
  std::vector<std::string> names() const;
  /// Returns the tensor as of this checkpoint, with the changed rows of all deltas. Rows that no
  /// checkpoint of the chain stores are absent from it. Throws UserError for an unknown name.
  at::Tensor read(const std::string& name) const;
  /// Returns the step, all tensors and the state.
  Snapshot snapshot() const;

 private:
  bool numbers_rows(const std::string& name) const;

  std::vector<Link> links_;
  nlohmann::json state_;
};

/// Reads a whole checkpoint into memory. Throws UserError as StoredCheckpoint does. `help()` of the
/// error then names the newest earlier checkpoint in the same folder that passes all checks.
Snapshot read_checkpoint(const std::filesystem::path& path);

/// Returns the newest checkpoint in `folder` that passes the checks of StoredCheckpoint. Logs a
/// warning about each newer checkpoint that fails them. Returns nullopt if the folder has no
/// checkpoints. Throws UserError if the folder has checkpoints and all of them fail. (A fresh start
/// would discard a run without being asked.)
std::optional<StoredCheckpoint> latest_checkpoint(const std::filesystem::path& folder);

/// Reads the checkpoint that `latest_checkpoint` returns into memory. If the folder has no
/// checkpoints, returns a Snapshot whose step is -1.
Snapshot read_latest_checkpoint(const std::filesystem::path& folder);

}  // namespace dovetail::io
