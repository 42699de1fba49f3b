#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/jobs/partial.h"
#include "dovetail/jobs/shard.h"
#include "dovetail/jobs/task.h"

namespace dovetail::jobs {
class Workers;
}

namespace dovetail::fit {

/// Rows per shard (unit of work, jobs/shard.h) of a table. The number is fixed, so that sums have
/// the same bits for any number of threads.
constexpr int64_t kTableGrain = 4096;

/// Table of N rows and D columns, with further tensors per row, such as labels. It holds the data
/// of mixtures, regression and principal components. Their tasks (jobs/task.h) run on shards of the
/// rows. `workers` (jobs/workers.h) runs the tasks. If it is null, the threads of this process run
/// them. If the workers are several nodes (processes), every node must call every member.
class TableData {
 public:
  /// Holds x without a copy. x must be (N, D) float32 or float64, contiguous, on the CPU, with at
  /// least one row and one column. Throws UserError for any other tensor. If a value of x is not
  /// finite, throws UserError that names its row and column. `more` are the further tensors, with N
  /// rows each. `who` names the algorithm in messages.
  TableData(const char* who, const at::Tensor& x, std::shared_ptr<jobs::Workers> workers,
            std::vector<at::Tensor> more = {});

  /// Runs a task on all shards. Returns the sum of its results.
  jobs::Partial run(const std::string& task, const jobs::Parameters& parameters) const;

  int64_t rows() const { return x_.size(0); }
  int64_t columns() const { return x_.size(1); }
  const at::Tensor& x() const { return x_; }
  /// Returns x (index 0) or a tensor of `more` (from index 1 on), with the values that tasks have
  /// written.
  at::Tensor tensor(size_t index) const;
  /// Replaces a tensor by one of the same shape and dtype. Indices are the same as for `tensor`.
  void put(size_t index, at::Tensor tensor) { resident_.put(index, std::move(tensor)); }

  /// Returns the mean of each column, (D) float64.
  const at::Tensor& mean() const { return mean_; }
  /// Returns the variance of each column, (D) float64. The sum of squares is divided by N, not by
  /// N - 1.
  const at::Tensor& variance() const { return variance_; }

 private:
  at::Tensor x_, mean_, variance_;
  jobs::ResidentData resident_;
  std::shared_ptr<jobs::Workers> workers_;
};

}  // namespace dovetail::fit
