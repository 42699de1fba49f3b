#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "dovetail/jobs/partial.h"
#include "dovetail/jobs/shard.h"
#include "dovetail/jobs/task.h"

namespace dovetail::jobs {

/// Interface of objects that run a task (jobs/task.h) on all shards of a data set. Runtime does so
/// on CPU threads and GPUs of this machine, Nodes on several machines.
class Workers {
 public:
  virtual ~Workers() = default;

  /// Runs the task on all shards and returns the sum of the partials. On CPUs it has the
  /// same bits as the result of run_task.
  virtual Partial run(const std::string& task, const Parameters& parameters,
                      const Shards& shards) = 0;

  /// Returns tensor `index` of the data with all rows up to date. This includes rows that tasks
  /// have written on other executors or nodes.
  virtual at::Tensor rows(const ResidentData& data, size_t index) = 0;
};

/// Runs a task on `workers`, or with run_task on the threads of this process if `workers` is null.
inline Partial run_on(Workers* workers, const std::string& task, const Parameters& parameters,
                      const Shards& shards) {
  return workers != nullptr ? workers->run(task, parameters, shards)
                            : run_task(task, parameters, shards);
}
/// Returns `workers->rows(data, index)`, or the current tensor of `data` if `workers` is null.
inline at::Tensor rows_on(Workers* workers, const ResidentData& data, size_t index) {
  return workers != nullptr ? workers->rows(data, index) : data.tensor(index);
}

}  // namespace dovetail::jobs
