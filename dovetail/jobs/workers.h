#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "dovetail/jobs/partial.h"
#include "dovetail/jobs/shard.h"
#include "dovetail/jobs/task.h"

namespace dovetail::jobs {

/// Computes the shards of a job, on executors of this machine (jobs/runtime.h) or on nodes
/// (jobs/nodes.h).
class Workers {
 public:
  virtual ~Workers() = default;

  /// Returns the sum of the task's partials over all shards of one ResidentData (TreeSum), with the
  /// bits of run_task.
  virtual Partial run(const std::string& task, const Parameters& parameters,
                      const std::vector<Shard>& shards) = 0;

  /// Returns a tensor of the data with all rows that tasks have written, on any executor or node.
  virtual at::Tensor rows(const ResidentData& data, size_t index) = 0;
};

/// Runs a task, or returns rows, on `workers`. If `workers` is null, uses run_task on the threads
/// of this process.
inline Partial run_on(Workers* workers, const std::string& task, const Parameters& parameters,
                      const std::vector<Shard>& shards) {
  return workers != nullptr ? workers->run(task, parameters, shards)
                            : run_task(task, parameters, shards);
}
inline at::Tensor rows_on(Workers* workers, const ResidentData& data, size_t index) {
  return workers != nullptr ? workers->rows(data, index) : data.tensor(index);
}

}  // namespace dovetail::jobs
