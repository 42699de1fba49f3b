#include "dovetail/jobs/task.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"

namespace dovetail::jobs {
namespace {

using Variants = std::map<c10::DeviceType, TaskVariant>;

constexpr int64_t kNoLimit = int64_t{1} << 62;

std::map<std::string, Variants>& registry() {
  static std::map<std::string, Variants> tasks;
  return tasks;
}

void add_variant(const std::string& name, c10::DeviceType device, TaskVariant variant) {
  // Elements of a std::map stay where they are, and so does the name of a task.
  const auto place = registry().try_emplace(name).first;
  variant.name = place->first.c_str();
  const bool fresh = place->second.emplace(device, std::move(variant)).second;
  DOVETAIL_CHECK(fresh, "task {} is registered twice for {}", name, c10::DeviceTypeName(device));
}

/// Returns the blocks that threads take one after another. Large ones come first, so that all
/// threads end together (guided self-scheduling, Polychronopoulos and Kuck 1987).
std::vector<Block> calls_of(int64_t first, int64_t count, int64_t threads) {
  if (threads == 1) return blocks_of(first, count, kCallShards);
  std::vector<Block> calls;
  while (count > 0) {
    const auto part = std::clamp<int64_t>(count / (2 * threads), 1, kCallShards);
    const auto most = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(part)));
    calls.push_back(blocks_of(first, most, most).front());
    first += calls.back().count;
    count -= calls.back().count;
  }
  return calls;
}

}  // namespace

void register_task(const std::string& name, c10::DeviceType device, Task task,
                   std::vector<size_t> writes, Takes takes) {
  add_variant(name, device,
              {.name = {}, .run = std::move(task), .writes = std::move(writes), .takes = takes});
}

void register_block_task(const std::string& name, c10::DeviceType device, BlockTask task,
                         std::vector<size_t> writes) {
  add_variant(name, device,
              {.name = {}, .run = {}, .writes = std::move(writes), .blocks = std::move(task)});
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

Partial run_task(const std::string& name, const Parameters& parameters, const Shards& shards) {
  DOVETAIL_CHECK(shards.size > 0, "task {} on no shards", name);
  return sum_of(run_task_blocks(name, parameters, shards, 0));
}

std::vector<BlockSum> call_task(const TaskVariant& variant, const Parameters& parameters,
                                const Shards& shards, int64_t place) {
  const TraceSpan span(variant.name);
  if (variant.blocks) return variant.blocks(parameters, shards, place);
  if (variant.takes == Takes::kOne) {
    TreeSum sum;
    for (int64_t i = 0; i < shards.count(); ++i)
      sum.add({.first = place + i, .partial = variant.run(parameters, shards.part(i, 1))});
    return sum.take(place, shards.count());
  }
  std::vector<BlockSum> sums;
  for (const auto& [first, count] : blocks_of(place, shards.count(), kNoLimit)) {
    sums.push_back({.first = first, .count = count});
    if (variant.takes == Takes::kBlock)
      sums.back().partial = variant.run(parameters, shards.part(first - place, count));
  }
  if (variant.takes == Takes::kAny) sums.at(0).partial = variant.run(parameters, shards);
  return sums;
}

std::vector<BlockSum> run_task_blocks(const std::string& name, const Parameters& parameters,
                                      const Shards& shards, int64_t place) {
  if (shards.size == 0) return {};
  const TaskVariant& variant = find_task(name, shards.location.type());
  const std::vector<Block> blocks = calls_of(place, shards.count(), parallel_workers());
  TreeSum sum;
  parallel_pieces(std::ssize(blocks), 1, [&](int64_t i, int64_t) {
    const Block& block = blocks[static_cast<size_t>(i)];
    for (BlockSum& part :
         call_task(variant, parameters, shards.part(block.first - place, block.count), block.first))
      sum.add(std::move(part));
  });
  return sum.take(place, shards.count());
}

}  // namespace dovetail::jobs
