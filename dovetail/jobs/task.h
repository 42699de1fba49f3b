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

/// Inputs of a task that are the same for all shards, such as the weights of a model. Read only.
using Parameters = std::vector<at::Tensor>;

/// Function that computes an additive result (Partial) from parameters and shards, ranges of rows
/// of a ResidentData. Example: the sums of the gradient over their rows. A task runs on the calling
/// thread and must return the same bits for the same rows. It may write into the shards' rows of
/// the tensors listed in TaskVariant::writes, and nowhere else. A Runtime passes copies of these
/// rows, since it may compute a shard twice.
using Task = std::function<Partial(const Parameters&, const Shards&)>;

/// Like Task, for any consecutive shards. `place` is the number of the first one among the shards
/// of the job. Returns blocks of the job's TreeSum, with the bits of the sums along its tree.
using BlockTask =
    std::function<std::vector<BlockSum>(const Parameters&, const Shards&, int64_t place)>;

/// Shards that a task can compute in one call.
enum class Takes {
  kOne,    ///< one shard
  kBlock,  ///< a block (BlockSum); the result has the bits of the sum along the tree of TreeSum
  kAny,    ///< any consecutive shards; the order of the sum is the task's own
};

/// Implementation of a task for one type of device. All variants of a task have the same inputs and
/// outputs.
struct TaskVariant {
  const char* name;  ///< name of the task, and of the span of each call in a trace
  Task run;          ///< empty if `blocks` is given
  /// Indices of the tensors of the ResidentData into which the task writes.
  std::vector<size_t> writes;
  Takes takes = Takes::kOne;
  BlockTask blocks = {};
};

/// Registers the variant of task `name` for a type of device. Libraries call it while they are
/// loaded, through a static TaskRegistration. Throws InternalError if the task already has a
/// variant for this type.
void register_task(const std::string& name, c10::DeviceType device, Task task,
                   std::vector<size_t> writes = {}, Takes takes = Takes::kOne);
void register_block_task(const std::string& name, c10::DeviceType device, BlockTask task,
                         std::vector<size_t> writes = {});
struct TaskRegistration {
  TaskRegistration(const std::string& name, c10::DeviceType device, Task task,
                   std::vector<size_t> writes = {}, Takes takes = Takes::kOne) {
    register_task(name, device, std::move(task), std::move(writes), takes);
  }
};
struct BlockTaskRegistration {
  BlockTaskRegistration(const std::string& name, c10::DeviceType device, BlockTask task,
                        std::vector<size_t> writes = {}) {
    register_block_task(name, device, std::move(task), std::move(writes));
  }
};

/// Returns the variant of task `name` for a type of device. If the task has none for this type,
/// throws UserError that names the types it has. Throws InternalError if no task has this name.
const TaskVariant& find_task(const std::string& name, c10::DeviceType device);

/// Maximum number of shards that a CPU thread computes in one call of a task.
inline constexpr int64_t kCallShards = 16;

/// Runs a variant on shards on the calling thread, in as few calls as it allows. `place` is the
/// number of the first shard among the shards of the job. Returns the sum as blocks of the job's
/// TreeSum.
std::vector<BlockSum> call_task(const TaskVariant& variant, const Parameters& parameters,
                                const Shards& shards, int64_t place);

/// Runs task `name` on shards and returns the sum of the partials (TreeSum). It uses
/// parallel_workers() threads; each of them takes up to kCallShards shards at a time. The bits of
/// the sum are the same for any number of threads. The task writes into the ResidentData in place,
/// so no Runtime may have computed on that ResidentData before. For devices of unequal speed see
/// jobs/runtime.h.
Partial run_task(const std::string& name, const Parameters& parameters, const Shards& shards);
/// Like run_task, for a part of a larger job: `place` is the number of the first shard among the
/// larger job's shards. There may be no shard. Returns the sum over `shards`, as blocks of the
/// larger job's TreeSum.
std::vector<BlockSum> run_task_blocks(const std::string& name, const Parameters& parameters,
                                      const Shards& shards, int64_t place);

}  // namespace dovetail::jobs
