#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/jobs/partial.h"
#include "dovetail/jobs/shard.h"

namespace dovetail::jobs {

/// Inputs that all shards of an iteration share. Read only.
using Parameters = std::vector<at::Tensor>;

/// Function from parameters and a shard to an additive partial. It runs on the calling thread and
/// gives the same bits for the same rows. It may write the shard's own rows of the tensors that it
/// is registered for, and nothing else. A runtime that may run a shard twice passes copies of these
/// rows. Variants for other devices have the same inputs and outputs.
using Task = std::function<Partial(const Parameters&, const Shard&)>;

struct TaskVariant {
  Task run;
  std::vector<size_t> writes;  ///< indices of the data's tensors that the task writes
};

/// Registers a task by name and type of device, while libraries are loaded. Throws InternalError if
/// the name is already registered for this type.
void register_task(const std::string& name, c10::DeviceType device, Task task,
                   std::vector<size_t> writes = {});
struct TaskRegistration {
  TaskRegistration(const std::string& name, c10::DeviceType device, Task task,
                   std::vector<size_t> writes = {}) {
    register_task(name, device, std::move(task), std::move(writes));
  }
};

/// Returns the variant of a task for a type of device. If there is none, throws UserError that
/// names the existing variants.
const TaskVariant& find_task(const std::string& name, c10::DeviceType device);

/// Returns the sum of a task's partials over shards of one device (TreeSum). The bits are the same
/// for any number of threads. Hands out shards one at a time to parallel_workers() threads. The
/// task writes its rows in place, so no runtime may have used the data before. For executors of
/// unequal speed see jobs/runtime.h.
Partial run_task(const std::string& name, const Parameters& parameters,
                 const std::vector<Shard>& shards);
/// Computes a part of a larger job, in which these shards have the numbers `place`, place + 1, ...
/// Returns their contribution to the sum over all shards, as blocks of a TreeSum.
std::vector<BlockSum> run_task_blocks(const std::string& name, const Parameters& parameters,
                                      const std::vector<Shard>& shards, int64_t place);

}  // namespace dovetail::jobs
