#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "dovetail/jobs/device_copies.h"
#include "dovetail/jobs/task.h"

namespace dovetail::jobs {

/// Result of a task on consecutive shards, ranges of rows of a ResidentData (jobs/shard.h).
struct ShardResult {
  std::vector<BlockSum> blocks;  ///< sums over these shards, numbered as in the larger job
  /// New values of their rows, one tensor for each tensor that the task writes
  /// (TaskVariant::writes). They are on the device that computed them.
  std::vector<at::Tensor> rows;
  double copy_s = 0;  ///< seconds for copies of rows and results between the devices
};

/// Execution of one task over shards. A task is a function registered under a name (register_task
/// in jobs/task.h).
///
/// A shard may be computed several times, for example after a thread hung. A late thread may even
/// finish after the job is over. So the job holds the parameters and data that it was started with,
/// until the last thread releases the job. Each computation writes into its own copies of the rows
/// that the task writes. The caller decides which result of a shard counts and passes it to
/// `accept`. After all shards were accepted, `take` puts the accepted rows into the ResidentData.
class Job {
 public:
  /// If the job is a part of a larger job, `place` is the number of its first shard among the
  /// larger job's shards. The functions below number the shards of this job from 0. Copies the
  /// parameters.
  Job(const std::string& task, Parameters parameters, const Shards& shards, int64_t place = 0);

  int64_t place() const { return place_; }
  /// Computes `count` shards from number `first` on, on the device of `copies`. Uses the task's
  /// variant for that type of device. Copies the sums to the device of the job's data. All member
  /// functions are thread-safe.
  ShardResult compute(int64_t first, int64_t count, DeviceCopies& copies) const;
  /// Returns a 64-bit hash of all bits of a result. Equal results have equal hashes.
  static uint64_t digest(const ShardResult& result);
  /// Adds a result of `compute` to the job's sum and stores its rows. Each shard must be accepted
  /// exactly once, with the one result that counts.
  void accept(int64_t first, int64_t count, ShardResult result);

  /// Returns the sum of the partials of all shards, as blocks of a TreeSum (jobs/partial.h). Each
  /// shard must have been accepted. Puts the accepted rows into the ResidentData. Without this
  /// call, the data stays unchanged.
  std::vector<BlockSum> take();
  /// Returns the number of rows of each shard.
  std::vector<int64_t> shard_rows() const;

 private:
  std::string task_;
  std::vector<size_t> writes_;  ///< indices of the data's tensors that the task writes
  Parameters parameters_;
  Shards shards_;
  int64_t place_;
  /// Returns rows [begin, begin + size) of tensor `index` of the data on the device of `copies`.
  /// The caller may write into a tensor that the task writes.
  at::Tensor rows_on(DeviceCopies& copies, size_t index, int64_t begin, int64_t size) const;

  /// Rows of all shards at the start of the job, one entry per tensor of the data. Never written.
  std::vector<PlacedRows> data_;
  /// Tensors that a task may read completely for every shard (ResidentData: `whole`).
  std::vector<at::Tensor> whole_;
  /// Accepted rows of all shards, one entry per index in `writes_`. Rows from other devices than
  /// the data's are pieces.
  std::vector<PlacedRows> written_;
  std::mutex pieces_mutex_;  ///< protects the pieces of `written_`
  TreeSum sum_;
};

/// Returns a key under which measured speeds are stored. Jobs with similar time per row have equal
/// keys. The key contains the task and floor(log2(number of rows)). It also contains the dtypes and
/// sizes of the parameters and of a row.
std::string job_key(const std::string& task, const Parameters& parameters, const Shards& shards);

/// Returns a 64-bit hash of all elements of the tensors, bit by bit, in order.
uint64_t digest_of(const std::vector<at::Tensor>& tensors);

}  // namespace dovetail::jobs
