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

/// Rows of a shard of a table: fixed, so that sums are the same bits for any number of threads.
constexpr int64_t kTableGrain = 4096;

/// A table of numbers and what goes with its rows: the data of mixtures, regression and principal
/// components. Their tasks run on its shards: on some workers (jobs/workers.h), or without any on
/// this process' threads. On several nodes, all members are called by all of them.
class TableData {
 public:
  /// x (N, D) float32 on the CPU, contiguous, at least one row and one column; kept, never copied.
  /// `more`: tensors of N rows. UserError for anything else, and for a value that is not finite,
  /// naming its row and column; `who` stands in its message.
  TableData(const char* who, const at::Tensor& x, std::shared_ptr<jobs::Workers> workers,
            std::vector<at::Tensor> more = {});

  jobs::Partial run(const std::string& task, const jobs::Parameters& parameters) const;

  int64_t rows() const { return x_.size(0); }
  int64_t columns() const { return x_.size(1); }
  const at::Tensor& x() const { return x_; }
  /// x and then `more`, as tasks have written them.
  at::Tensor tensor(size_t index) const;
  void put(size_t index, at::Tensor tensor) { resident_.put(index, std::move(tensor)); }

  /// Of each column (D) float64; the variance is of these rows, not an estimate of another
  /// population's.
  const at::Tensor& mean() const { return mean_; }
  const at::Tensor& variance() const { return variance_; }

 private:
  at::Tensor x_, mean_, variance_;
  jobs::ResidentData resident_;
  std::shared_ptr<jobs::Workers> workers_;
};

}  // namespace dovetail::fit
