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

/// Memory limit of a step that is being recorded and has no plan yet.
struct RecordingLimit {
  /// Returns the bytes that the step may hold. `keep_all_bytes` is the peak so far of the same step
  /// with everything kept.
  std::function<int64_t(int64_t keep_all_bytes)> bytes;
  /// Earlier recording, which shows how much each operation allocates; null if there is none.
  const CapturedStep* previous = nullptr;
};

/// Keeps a step within a memory limit while it is recorded. Frees storages that recorded operations
/// can recompute, and recomputes them when an operation needs them. Recomputed values have the same
/// bits as the first ones. Tensors from before the step and results of run-once operations are
/// never freed.
///
/// Method: dynamic tensor rematerialization (Kirisame et al., "Dynamic Tensor Rematerialization",
/// ICLR 2021). It frees the storage with the minimum of recompute time / (bytes * time since its
/// last use).
class OnlineRecompute {
 public:
  /// Creates an empty state. `step` is the recording; its operations and storages grow meanwhile.
  OnlineRecompute(const CapturedStep& step, RecordingLimit limit)
      : step_(step), limit_(std::move(limit)) {}

  /// Adds the next storage of the recording. `made` is true if the operation that has just run
  /// created it.
  void add(const at::Tensor& tensor, bool made);
  /// Prepares for `operation`, which is about to run. Recomputes the storages that it reads and
  /// writes, and frees memory for its allocations.
  void before(const CapturedOperation& operation);
  /// Registers the latest operation of the recording after it has run. `gives_memory` is true if
  /// its results have no values yet. Throws UserError if the operation changed a source of freed
  /// storages without declaring this in its schema.
  void after(bool gives_memory);
  /// Recomputes all freed storages that are still referenced elsewhere.
  void restore();

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> impl;
    int64_t bytes = 0;
    bool made = false;            // created by the step
    bool freed = false;           // freed by this class
    bool without_values = false;  // not yet written
    bool fixed = false;           // cannot be recomputed
    bool lost = false;            // fixed, since a source of its recomputation has changed
    std::vector<int> by;          // operations that compute it, in order
    double seconds = 0;           // duration of these operations
    double missing_s = 0;  // recompute time of its sources that were missing when it was freed
    int64_t used = 0;      // number of the last operation that needed it
    int locks = 0;         // pending operations that need it
    std::optional<c10::Storage> own;  // recomputed storage that nobody else holds
    bool is_held() const { return impl.use_count() > 0; }
    bool is_there() const { return own.has_value() || (!freed && is_held()); }
  };
  struct Run {
    std::vector<int> reads;  // storages that are only read
    at::Tensor random;       // generator state before a random operation
    int64_t bytes = 0;       // maximum allocated at the same time
  };

  int64_t held_bytes(bool everything_kept) const;
  c10::Storage storage_of(int s) const;
  void fetch(const std::vector<int>& wanted);
  std::vector<int> missing(const std::vector<int>& wanted) const;
  void run_again(int operation, int wanted);
  void make_room(int64_t bytes);
  void keep_sources(const CapturedOperation& operation, const std::vector<int>& reads);
  double cost(const Entry& entry) const;
  std::vector<int> lost_by_writing(int storage) const;

  const CapturedStep& step_;
  const RecordingLimit limit_;
  std::vector<Entry> entries_;                     // per storage
  std::vector<std::vector<int>> readers_;          // per storage: operations that read it
  std::vector<Run> runs_;                          // per operation
  std::unordered_map<std::string, int64_t> most_;  // maximum bytes by operation name
  std::vector<int> current_;                       // storages of the running operation
  at::Tensor random_;
  int64_t found_bytes_ = 0, kept_before_ = 0, keep_all_bytes_ = 0, now_ = 0;
  int64_t freed_bytes_ = 0;  // since memory was returned to the system
  int64_t again_ = 0;        // number of recomputed operations
  int64_t allowance_ = 0;    // bytes that may be held although they exceed the limit
  // Results of run-once operations that other storages are recomputed from.
  std::vector<c10::Storage> held_;
};

}  // namespace dovetail::plan
