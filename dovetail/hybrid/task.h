#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/hybrid/partial.h"
#include "dovetail/hybrid/shard.h"

namespace dovetail::hybrid {

/// What all shards of an iteration share. Read only.
using Parameters = std::vector<at::Tensor>;

/// A task maps parameters and a shard to an additive partial, on the calling thread. It may also write the shard's own
/// rows of its data, and nothing else. Variants for other devices have the same inputs and outputs.
using Task = std::function<Partial(const Parameters&, const Shard&)>;

/// Tasks by name and kind of device. Registered while libraries are loaded; a second one of a name is a broken
/// invariant.
void register_task(const std::string& name, c10::DeviceType device, Task task);
struct TaskRegistration {
  TaskRegistration(const std::string& name, c10::DeviceType device, Task task) {
    register_task(name, device, std::move(task));
  }
};

/// Throws UserError that names the variants that there are.
const Task& find_task(const std::string& name, c10::DeviceType device);

/// The sum of a task's partials over shards of one device, in their order: the same bits for any number of threads.
/// Shards are handed out to parallel_workers() threads one at a time.
Partial run_task(const std::string& name, const Parameters& parameters, const std::vector<Shard>& shards);

}  // namespace dovetail::hybrid
