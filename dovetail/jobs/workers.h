#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "dovetail/jobs/partial.h"
#include "dovetail/jobs/shard.h"
#include "dovetail/jobs/task.h"

namespace dovetail::jobs {

/// Who computes the shards of a job: executors of this machine (jobs/runtime.h), or nodes
/// (jobs/nodes.h).
class Workers {
 public:
  virtual ~Workers() = default;

  /// The sum of the task's partials over all shards of one data (TreeSum), with the bits of
  /// run_task.
  virtual Partial run(const std::string& task, const Parameters& parameters,
                      const std::vector<Shard>& shards) = 0;

  /// A tensor of the data, as tasks have written its rows, wherever they ran.
  virtual at::Tensor rows(const ResidentData& data, size_t index) = 0;
};

/// On some workers, or without any by run_task on this process' threads.
inline Partial run_on(Workers* workers, const std::string& task, const Parameters& parameters,
                      const std::vector<Shard>& shards) {
  return workers != nullptr ? workers->run(task, parameters, shards)
                            : run_task(task, parameters, shards);
}
inline at::Tensor rows_on(Workers* workers, const ResidentData& data, size_t index) {
  return workers != nullptr ? workers->rows(data, index) : data.tensor(index);
}

}  // namespace dovetail::jobs
