#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/hybrid/task.h"

namespace dovetail::hybrid {

/// A task's result on one shard: its partial, and the rows of the data that the task writes.
struct ShardResult {
  Partial partial;
  std::vector<at::Tensor> rows;
};

/// One task over shards, where a shard may be computed any number of times, by threads that may come back when the job
/// is over. It holds what they read, parameters and data, as it was when the job began, until the last of them is gone.
/// Each writes into copies of the rows that the task writes; of those that count, the data gets new tensors once all
/// are there.
class Job {
 public:
  /// Shards of one data, one after another in its rows. Copies the parameters.
  Job(const std::string& task, c10::DeviceType device, Parameters parameters, std::vector<Shard> shards);

  /// Safe from several threads, as are the others.
  ShardResult compute(int64_t shard) const;
  /// A number that stands for all bits of a result.
  static uint64_t digest(const ShardResult& result);
  /// Takes the result that counts, once for each shard.
  void accept(int64_t shard, ShardResult result);

  /// The sum over all shards in their order, which must all have been accepted. The data has their rows from now on;
  /// a job that does not come to this leaves it as it was.
  Partial take();
  std::vector<int64_t> shard_rows() const;
  /// What the time of a row depends on: the task, dtypes and sizes of parameters and of a row, and the number of rows
  /// to a power of two.
  std::string key() const;

 private:
  Shard all() const;
  /// The shard's rows of a tensor with the rows of all: a view.
  at::Tensor narrow(const at::Tensor& all, int64_t shard) const;

  std::string name_;
  const TaskVariant& task_;
  Parameters parameters_;
  std::vector<Shard> shards_;
  std::vector<at::Tensor> data_;     ///< rows of all shards; read only, as is
  std::vector<at::Tensor> whole_;    ///< what the data has for every shard
  std::vector<at::Tensor> written_;  ///< what those become that the task writes
  OrderedSum sum_;
};

}  // namespace dovetail::hybrid
