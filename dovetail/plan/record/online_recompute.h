#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Memory limit for a step that is being recorded and has no plan yet.
struct RecordingLimit {
  /// Returns the maximum bytes that the step may hold. `keep_all_bytes` is the peak that the step
  /// would have reached so far if it had freed nothing for the limit.
  std::function<int64_t(int64_t keep_all_bytes)> bytes;
  /// Earlier recording, which shows how much memory each operation allocates; null if there is
  /// none.
  const CapturedStep* previous = nullptr;
};

/// Keeps a step within a memory limit while it is recorded. Frees storages that recorded operations
/// can recompute, and recomputes them when an operation needs them. Recomputed values have the same
/// bits as the first ones. Tensors from before the step, and results of operations that must run
/// once (CapturedOperation::once), are never freed.
///
/// Method: dynamic tensor rematerialization (Kirisame et al., "Dynamic Tensor Rematerialization",
/// ICLR 2021). It frees the storage with the minimum of recompute time / (bytes * time since its
/// last use).
class OnlineRecompute {
 public:
  /// Follows the recording `step`, whose operations and storages grow meanwhile. The recorder calls
  /// `before` and `after` around each operation, and `add` for each new storage.
  OnlineRecompute(const CapturedStep& step, RecordingLimit limit)
      : step_(step), limit_(std::move(limit)) {}

  /// Adds the next storage of the recording. `made` is true if the operation that has just run
  /// created it, false if it existed before the step.
  void add(const at::Tensor& tensor, bool made);
  /// Prepares for `operation`, which is about to run. Recomputes freed storages that it reads or
  /// writes, and frees memory for its allocations.
  void before(const CapturedOperation& operation);
  /// Registers the latest operation of the recording after it has run. `gives_memory` is true if
  /// its results have no values yet (aten::empty).
  ///
  /// An operation may change an input without declaring it in its schema. Throws UserError if freed
  /// storages must be recomputed from such an input.
  void after(bool gives_memory);
  /// Recomputes all freed storages that tensors outside this class still refer to. Call at the end
  /// of the step.
  void restore();

 private:
  // State of a storage of the recording.
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> impl;
    int64_t bytes = 0;
    bool made = false;            // created by an operation of the step
    bool freed = false;           // freed by this class
    bool without_values = false;  // not yet written
    bool fixed = false;           // cannot be recomputed
    bool lost = false;    // cannot be recomputed, since an input of its recomputation has changed
    std::vector<int> by;  // operations that create and then change it, in order
    double seconds = 0;   // duration of these operations
    // Time to recompute inputs of its recomputation that were missing when it was freed.
    double missing_s = 0;
    int64_t used = 0;  // number of the last operation that used it
    int locks = 0;     // pending operations that need it; it is not freed meanwhile
    // Its recomputed memory, if no tensor outside this class refers to it.
    std::optional<c10::Storage> own;
    // Returns true if a tensor refers to it.
    bool is_held() const { return impl.use_count() > 0; }
    // Returns true if its values are in memory.
    bool is_there() const { return own.has_value() || (!freed && is_held()); }
  };
  // Data for running a recorded operation again.
  struct Run {
    std::vector<int> reads;  // storages that it reads and does not change
    at::Tensor random;       // state of the random generator before it, if it is random
    int64_t bytes = 0;       // maximum bytes that it allocates at the same time
  };

  at::Generator random_generator() const;
  int64_t held_bytes(bool everything_kept) const;
  c10::Storage storage_of(int s) const;
  void fetch(const std::vector<int>& wanted);
  std::vector<int> missing(const std::vector<int>& wanted) const;
  void rerun_operation(int operation, int wanted);
  void make_room(int64_t bytes);
  void keep_sources(const CapturedOperation& operation, const std::vector<int>& reads);
  double cost(const Entry& entry) const;
  std::vector<int> lost_by_writing(int storage) const;

  const CapturedStep& step_;
  const RecordingLimit limit_;
  std::vector<Entry> entries_;                     // per storage
  std::vector<std::vector<int>> readers_;          // per storage: operations that read it
  std::vector<Run> runs_;                          // per operation
  std::unordered_map<std::string, int64_t> most_;  // maximum of Run::bytes by operation name
  std::vector<int> current_;  // storages that the running operation reads or writes
  // State of the random generator before the running operation.
  at::Tensor random_;
  // - found_bytes_: bytes of storages from before the step
  // - kept_before_: bytes before the running operation if nothing had been freed for the limit
  // - keep_all_bytes_: peak so far if nothing had been freed for the limit
  // - now_: number of operations begun
  int64_t found_bytes_ = 0, kept_before_ = 0, keep_all_bytes_ = 0, now_ = 0;
  int64_t freed_bytes_ = 0;  // bytes freed since memory was last returned to the system
  int64_t again_ = 0;        // number of recomputed operations
  // Number of bytes that the step may hold even if the limit is lower; 0 at first. It rises to the
  // bytes in use when the step has recomputed too many operations. This bounds the time for
  // recomputation.
  int64_t allowance_ = 0;
  // References that keep storages alive. These storages cannot be recomputed, and others are
  // recomputed from them.
  std::vector<c10::Storage> held_;
};

}  // namespace dovetail::plan
