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

/// Memory limit of a step that is recorded and has no plan yet.
struct RecordingLimit {
  /// Bytes that the step may hold, given the peak of the step with everything kept as far as it has
  /// come.
  std::function<int64_t(int64_t keep_all_bytes)> bytes;
  const CapturedStep* previous =
      nullptr;  ///< an earlier recording, which tells what each operation allocates
};

/// Keeps a step within a limit while it is recorded: frees storages that recorded operations can
/// make again, and makes them when an operation needs them. Operations run again give the bits of
/// their first run. Tensors that the step found, and results of operations that run once, are never
/// freed.
///
/// Method: dynamic tensor rematerialization (Kirisame et al., "Dynamic Tensor Rematerialization",
/// ICLR 2021). The storage to free has the least time to make it again, divided by its bytes and by
/// the time since its last use.
class OnlineRecompute {
 public:
  /// `step` is the recording; its operations and storages grow meanwhile.
  OnlineRecompute(const CapturedStep& step, RecordingLimit limit)
      : step_(step), limit_(std::move(limit)) {}

  /// The next storage of the recording. `made`: by the operation that has just run.
  void add(const at::Tensor& tensor, bool made);
  /// Makes what `operation` reads and writes, and room for what it allocates. It is about to run.
  void before(const CapturedOperation& operation);
  /// The latest operation of the recording has run; `gives_memory`: what it made has no values yet.
  /// UserError where it has changed, unseen by its schema, a storage that freed ones are made from.
  void after(bool gives_memory);
  /// Makes all storages that someone still holds.
  void restore();

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> impl;
    int64_t bytes = 0;
    bool made = false;            // by the step
    bool freed = false;           // by this class
    bool without_values = false;  // nothing has written it
    bool fixed = false;           // cannot be made again
    bool lost = false;            // fixed, as something that it is made from has changed
    std::vector<int> by;          // operations that make it, in order
    double seconds = 0;           // duration of these
    double missing_s = 0;         // duration for its sources that were missing when it was freed
    int64_t used = 0;             // number of the last operation that needed it
    int locks = 0;                // operations to come that need it
    std::optional<c10::Storage> own;  // made again though nobody else holds it
    bool is_held() const { return impl.use_count() > 0; }
    bool is_there() const { return own.has_value() || (!freed && is_held()); }
  };
  struct Run {
    std::vector<int> reads;  // storages, without the written ones
    at::Tensor random;       // state of the generator before a random operation
    int64_t bytes = 0;       // maximum allocated at a time
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
  std::vector<Entry> entries_;                     // by storage
  std::vector<std::vector<int>> readers_;          // by storage: operations
  std::vector<Run> runs_;                          // by operation
  std::unordered_map<std::string, int64_t> most_;  // bytes, by name of operation
  std::vector<int> current_;                       // storages of the operation that runs
  at::Tensor random_;
  int64_t found_bytes_ = 0, kept_before_ = 0, keep_all_bytes_ = 0, now_ = 0;
  int64_t freed_bytes_ = 0;  // since memory was given back
  int64_t again_ = 0;        // operations that have run again
  int64_t allowance_ = 0;    // bytes that may be held though they are beyond the limit
  std::vector<c10::Storage>
      held_;  // results of operations that run once, which others are made from
};

}  // namespace dovetail::plan
