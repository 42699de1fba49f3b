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

/// Rows per shard of a table. The number is fixed, so that sums have the same bits for any number
/// of threads.
constexpr int64_t kTableGrain = 4096;

/// Table of numbers, with further tensors per row: the data of mixtures, regression and principal
/// components. Their tasks run on its shards. The given workers (jobs/workers.h) compute them;
/// without workers, the threads of this process do. If the workers are several nodes, every node
/// must call every member.
class TableData {
 public:
  /// Keeps x without a copy. x must be (N, D) float32, contiguous, on the CPU, with at least one
  /// row and one column. `more` are tensors with N rows. Throws UserError for any other tensor.
  /// Throws UserError that names row and column of a value that is not finite. `who` names the job
  /// in messages.
  TableData(const char* who, const at::Tensor& x, std::shared_ptr<jobs::Workers> workers,
            std::vector<at::Tensor> more = {});

  jobs::Partial run(const std::string& task, const jobs::Parameters& parameters) const;

  int64_t rows() const { return x_.size(0); }
  int64_t columns() const { return x_.size(1); }
  const at::Tensor& x() const { return x_; }
  /// Returns x (index 0) or a tensor of `more` (from index 1 on), as tasks have written it.
  at::Tensor tensor(size_t index) const;
  void put(size_t index, at::Tensor tensor) { resident_.put(index, std::move(tensor)); }

  /// Mean and variance of each column, (D) float64. The variance is of these rows (divided by N),
  /// not an estimate for another population.
  const at::Tensor& mean() const { return mean_; }
  const at::Tensor& variance() const { return variance_; }

 private:
  at::Tensor x_, mean_, variance_;
  jobs::ResidentData resident_;
  std::shared_ptr<jobs::Workers> workers_;
};

}  // namespace dovetail::fit
