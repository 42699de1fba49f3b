#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/jobs/device_copies.h"
#include "dovetail/jobs/task.h"

namespace dovetail::jobs {

/// A task's result on one shard: its partial, and the rows of the data that the task writes.
struct ShardResult {
  Partial partial;
  std::vector<at::Tensor> rows;
};

/// One task over shards, where a shard may be computed any number of times, by threads that may
/// come back when the job is over. It holds what they read, parameters and data, as it was when the
/// job began, until the last of them is gone. Each writes into copies of the rows that the task
/// writes; of those that count, the data gets new tensors once all are there.
class Job {
 public:
  /// Shards of one data, one after another in its rows, which are `place`, place + 1, ... of those
  /// that are summed. Copies the parameters.
  Job(const std::string& task, Parameters parameters, std::vector<Shard> shards, int64_t place = 0);

  /// On the device of the copies, by its variant of the task; the result is where the data is. Safe
  /// from several threads, as are the others.
  ShardResult compute(int64_t shard, DeviceCopies& copies) const;
  /// A number that stands for all bits of a result.
  static uint64_t digest(const ShardResult& result);
  /// Takes the result that counts, once for each shard.
  void accept(int64_t shard, ShardResult result);

  /// The sums over all shards, which must all have been accepted. The data has their rows from now
  /// on; a job that does not come to this leaves it as it was.
  std::vector<BlockSum> take();
  std::vector<int64_t> shard_rows() const;

 private:
  /// The shard's rows of a tensor with the rows of all: a view.
  at::Tensor narrow(const at::Tensor& all, int64_t shard) const;

  std::string task_;
  std::vector<size_t> writes_;  ///< tensors of the data
  Parameters parameters_;
  std::vector<Shard> shards_;
  int64_t place_;
  std::vector<at::Tensor> data_;     ///< rows of all shards; read only, as is
  std::vector<at::Tensor> whole_;    ///< what the data has for every shard
  std::vector<at::Tensor> written_;  ///< what those become that the task writes
  TreeSum sum_;
};

/// What the time of a row depends on: the task, dtypes and sizes of parameters and of a row, and
/// the number of rows to a power of two. Of shards of one data, one after another in its rows.
std::string job_key(const std::string& task, const Parameters& parameters,
                    const std::vector<Shard>& shards);

/// A number that stands for all bits of some tensors.
uint64_t digest_of(const std::vector<at::Tensor>& tensors);

}  // namespace dovetail::jobs
