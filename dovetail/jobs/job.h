#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/jobs/device_copies.h"
#include "dovetail/jobs/task.h"

namespace dovetail::jobs {

/// Result of a task on one shard: its partial, and the shard's rows of each tensor that the task
/// writes.
struct ShardResult {
  Partial partial;
  std::vector<at::Tensor> rows;
};

/// Execution of one task over shards. A shard may be computed any number of times, also by threads
/// that finish after the job is over. So the job holds its parameters and data as they were at its
/// start. It holds them until the last of these threads has finished. Each computation writes into
/// its own copies of the rows that the task writes. When all shards are accepted, the data gets new
/// tensors with the accepted rows.
class Job {
 public:
  /// Takes consecutive shards of one ResidentData. Their numbers in the sum over all shards are
  /// `place`, place + 1, and so on. Copies the parameters.
  Job(const std::string& task, Parameters parameters, std::vector<Shard> shards, int64_t place = 0);

  /// Computes a shard on the device of `copies`, with the variant of the task for that device. The
  /// result is on the device of the data. Thread-safe, like the other members.
  ShardResult compute(int64_t shard, DeviceCopies& copies) const;
  /// Returns a 64-bit hash of all bits of a result.
  static uint64_t digest(const ShardResult& result);
  /// Takes over the result that counts for a shard. Must be called exactly once per shard.
  void accept(int64_t shard, ShardResult result);

  /// Returns the sums over all shards; each must have been accepted. Puts the rows that the task
  /// wrote into the data. A job that never gets here leaves the data unchanged.
  std::vector<BlockSum> take();
  std::vector<int64_t> shard_rows() const;

 private:
  /// Returns the view of the shard's rows in `all`, a tensor with the rows of all shards.
  at::Tensor narrow(const at::Tensor& all, int64_t shard) const;

  std::string task_;
  std::vector<size_t> writes_;  ///< indices of the data's tensors
  Parameters parameters_;
  std::vector<Shard> shards_;
  int64_t place_;
  std::vector<at::Tensor> data_;     ///< rows of all shards at the start of the job; never written
  std::vector<at::Tensor> whole_;    ///< tensors that every shard may read as a whole
  std::vector<at::Tensor> written_;  ///< new rows of the tensors in `writes_`
  TreeSum sum_;
};

/// Returns a key of everything that the time per row depends on. These are the task, the dtypes and
/// sizes of the parameters and of a row, and floor(log2(number of rows)). The shards must be
/// consecutive and belong to one ResidentData.
std::string job_key(const std::string& task, const Parameters& parameters,
                    const std::vector<Shard>& shards);

/// Returns a 64-bit hash of all bits of the tensors.
uint64_t digest_of(const std::vector<at::Tensor>& tensors);

}  // namespace dovetail::jobs
