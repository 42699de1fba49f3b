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

/// What all shards of an iteration share. Read only.
using Parameters = std::vector<at::Tensor>;

/// A task maps parameters and a shard to an additive partial, on the calling thread, the same bits
/// whenever it is run on the same rows. It may also write the shard's own rows of those tensors of
/// its data that it is registered for, and nothing else: a runtime that may run a shard twice gives
/// it copies of them. Variants for other devices have the same inputs and outputs.
using Task = std::function<Partial(const Parameters&, const Shard&)>;

struct TaskVariant {
  Task run;
  std::vector<size_t> writes;  ///< tensors of the data
};

/// Tasks by name and kind of device. Registered while libraries are loaded; a second one of a name
/// is a broken invariant.
void register_task(const std::string& name, c10::DeviceType device, Task task,
                   std::vector<size_t> writes = {});
struct TaskRegistration {
  TaskRegistration(const std::string& name, c10::DeviceType device, Task task,
                   std::vector<size_t> writes = {}) {
    register_task(name, device, std::move(task), std::move(writes));
  }
};

/// Throws UserError that names the variants that there are.
const TaskVariant& find_task(const std::string& name, c10::DeviceType device);

/// The sum of a task's partials over shards of one device (TreeSum): the same bits for any number
/// of threads. Shards are handed out to parallel_workers() threads one at a time, and what the task
/// writes is written in place: for data of which no runtime has had any. Executors of unequal
/// speed: jobs/runtime.h.
Partial run_task(const std::string& name, const Parameters& parameters,
                 const std::vector<Shard>& shards);
/// The same over shards that are `place`, place + 1, ... of more: what they add to the sum over
/// all.
std::vector<BlockSum> run_task_blocks(const std::string& name, const Parameters& parameters,
                                      const std::vector<Shard>& shards, int64_t place);

}  // namespace dovetail::jobs
