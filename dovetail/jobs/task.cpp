#include "dovetail/jobs/task.h"

#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"

namespace dovetail::jobs {
namespace {

using Variants = std::map<c10::DeviceType, TaskVariant>;

std::map<std::string, Variants>& registry() {
  static std::map<std::string, Variants> tasks;
  return tasks;
}

}  // namespace

void register_task(const std::string& name, c10::DeviceType device, Task task,
                   std::vector<size_t> writes) {
  const bool fresh =
      registry()[name].emplace(device, TaskVariant{std::move(task), std::move(writes)}).second;
  DOVETAIL_CHECK(fresh, "task {} is registered twice for {}", name, c10::DeviceTypeName(device));
}

const TaskVariant& find_task(const std::string& name, c10::DeviceType device) {
  const auto found = registry().find(name);
  DOVETAIL_CHECK(found != registry().end(), "no task is named {}", name);
  const auto variant = found->second.find(device);
  if (variant != found->second.end()) return variant->second;
  std::vector<std::string> there;
  for (const auto& [type, task] : found->second) there.push_back(c10::DeviceTypeName(type, true));
  throw UserError(fmt::format("task {} does not run on {}, only on {}", name,
                              c10::DeviceTypeName(device, true), fmt::join(there, ", ")));
}

Partial run_task(const std::string& name, const Parameters& parameters,
                 const std::vector<Shard>& shards) {
  DOVETAIL_CHECK(!shards.empty(), "task {} on no shards", name);
  return sum_of(run_task_blocks(name, parameters, shards, 0));
}

std::vector<BlockSum> run_task_blocks(const std::string& name, const Parameters& parameters,
                                      const std::vector<Shard>& shards, int64_t place) {
  if (shards.empty()) return {};
  const Task& task = find_task(name, shards.front().location.type()).run;
  TreeSum sum;
  parallel_pieces(std::ssize(shards), 1, [&](int64_t i, int64_t) {
    sum.add({.first = place + i, .partial = task(parameters, shards[static_cast<size_t>(i)])});
  });
  return sum.take(place, std::ssize(shards));
}

}  // namespace dovetail::jobs
