#pragma once

#include <array>
#include <cstdint>
#include <mutex>
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
/// is over: each writes into copies of the rows that the task writes, and the result that counts is put in place. Holds
/// the data as long as a thread holds the job.
class Job {
 public:
  /// Shards of one data, one after another in its rows.
  Job(const std::string& task, c10::DeviceType device, Parameters parameters, std::vector<Shard> shards);

  /// Safe from several threads, as are the others.
  ShardResult compute(int64_t shard) const;
  /// A number that stands for all bits of a result.
  static uint64_t digest(const ShardResult& result);
  /// Takes the result that counts, once for each shard.
  void accept(int64_t shard, ShardResult result);

  /// The sum over all shards in their order, which must all have been accepted.
  Partial take() { return sum_.take(std::ssize(shards_)); }
  std::vector<int64_t> shard_rows() const;
  /// What the time of a row depends on: the task, dtypes and sizes of parameters and of a row, and the number of rows
  /// to a power of two.
  std::string key() const;

 private:
  /// The shard's rows of each tensor: views.
  std::vector<at::Tensor> rows_of_shard(int64_t shard) const;
  std::mutex& mutex_of(int64_t shard) const { return mutexes_[static_cast<size_t>(shard) % mutexes_.size()]; }

  std::string name_;
  const TaskVariant& task_;
  Parameters parameters_;
  std::vector<Shard> shards_;
  std::vector<at::Tensor> data_;  ///< rows of all shards
  OrderedSum sum_;
  /// Rows that are written are copied and put in place under the mutex of their shard.
  mutable std::array<std::mutex, 16> mutexes_;
};

}  // namespace dovetail::hybrid
