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

namespace dovetail {

/// What a checkpoint holds: named tensors (parameters, optimizer moments) and the state around
/// them.
struct Snapshot {
  int64_t step = 0;
  std::map<std::string, at::Tensor> tensors;  ///< "model.<name>", "optimizer.m.<name>", ...
  nlohmann::json
      state;  ///< config, topology, data position, metrics offset, RNG seed; finite numbers only
};

/// A full checkpoint stands for itself; of a large tensor it may hold some rows and their numbers,
/// where the reader knows the others. A delta holds the rows that changed since the checkpoint
/// before it, which it needs.
enum class CheckpointKind { kFull, kDelta };

/// Checkpoints of one run: `<folder>/step-00001200/{manifest.json,
/// tensors-00001-of-00002.safetensors, ...}`.
///
/// A save is written into `.step-00001200.partial`, every file and the folder synced, then renamed
/// and `<folder>` synced; so a folder with a final name is always whole, whatever is killed or cut
/// when. A step that is there already is exchanged for the new one. After a save of step s the
/// newest `keep` of the steps up to s stay, and what they build on; later ones (of a run that went
/// back) are not touched. One process writes (rank 0).
class CheckpointFolder {
 public:
  struct Options {
    int64_t keep = 3;  ///< at least 1
    int64_t shard_bytes = int64_t{2}
                          << 30;  ///< a file's data; one larger tensor is a file of its own
  };
  /// Makes `folder` when a save needs it.
  CheckpointFolder(std::filesystem::path folder, Options options);
  ~CheckpointFolder();  ///< waits for a save in progress; a failure that nobody has seen becomes a
                        ///< warning
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  /// Removes leftovers of killed saves. Call once before the first save of a process.
  void clean();

  /// Begins a save whose largest tensors are written before the others, while the caller waits: a
  /// save in progress is waited for, and its failure thrown. A delta builds on the save before, of
  /// this process. The result is to be filled until save_async of the same step, which throws what
  /// cannot be saved; `wait` throws what the disk did not take.
  StreamedTensors& begin(int64_t step, CheckpointKind kind);

  /// Copies tensors that somebody else holds, too (so training goes on), and writes all on a
  /// thread, which frees them file by file. A save in progress is waited for first, and its failure
  /// is thrown here instead of starting another. UserError names a tensor with a NaN or an
  /// infinity; nothing is written then.
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

/// A checkpoint that verifies, with those that it builds on: the manifests' format, version and own
/// checksums, and of each file size, sha256 and tensor names. Its tensors are read when they are
/// asked for.
class StoredCheckpoint {
 public:
  /// Throws UserError with the reason, naming the checkpoint of the chain that has it.
  explicit StoredCheckpoint(const std::filesystem::path& path);

  /// A full checkpoint, and the deltas on it in the order in which they are applied.
  struct Link {
    int64_t step = 0;
    /// Of each tensor, where it is.
    std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
    std::map<std::string, std::string>
        rows_of;  ///< the manifest's; in the first, tensors without all rows
  };
  const std::vector<Link>& links() const { return links_; }
  int64_t step() const { return links_.back().step; }
  const nlohmann::json& state() const { return state_; }

  /// Tensors, ascending, and the numbers of the rows of those that have some alone.
  std::vector<std::string> names() const;
  /// With the rows of all deltas; rows that were never saved are not there. UserError for an
  /// unknown name.
  at::Tensor read(const std::string& name) const;
  /// All of it.
  Snapshot snapshot() const;

 private:
  bool numbers_rows(const std::string& name) const;

  std::vector<Link> links_;
  nlohmann::json state_;
};

/// The checkpoint as a whole. Throws UserError as StoredCheckpoint; `help()` offers the newest
/// earlier step beside it that verifies.
Snapshot read_checkpoint(const std::filesystem::path& path);

/// The newest checkpoint in `folder` that verifies, and all that it builds on; warns about each one
/// refused. None when there is none at all; UserError when there are some but none verifies, since
/// starting afresh would throw a run away unasked.
std::optional<StoredCheckpoint> latest_checkpoint(const std::filesystem::path& folder);

/// The same as a whole; step = -1 when there is none.
Snapshot read_latest_checkpoint(const std::filesystem::path& folder);

}  // namespace dovetail
