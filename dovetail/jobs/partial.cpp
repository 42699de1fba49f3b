#include "dovetail/jobs/partial.h"

#include <iterator>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::jobs {

void Partial::add(const Partial& other) {
  DOVETAIL_CHECK(tensors.size() == other.tensors.size(), "{} tensors and {}", tensors.size(),
                 other.tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].add_(other.tensors[i]);
  weight += other.weight;
}

void TreeSum::add(BlockSum block) {
  for (;;) {
    BlockSum pair;
    {
      const std::lock_guard lock(mutex_);
      const auto found = blocks_.find(block.first ^ block.count);
      if (found == blocks_.end() || found->second.count != block.count) {
        const auto next = blocks_.lower_bound(block.first);
        const bool meets_next = next != blocks_.end() && next->first < block.first + block.count;
        const bool meets_last =
            next != blocks_.begin() &&
            std::prev(next)->first + std::prev(next)->second.count > block.first;
        DOVETAIL_CHECK(!meets_next && !meets_last,
                       "a second partial of one of {} shards from {} on", block.count, block.first);
        blocks_.emplace(block.first, std::move(block));
        return;
      }
      pair = std::move(found->second);
      blocks_.erase(found);
    }
    if (pair.first < block.first) std::swap(pair, block);
    block.partial.add(pair.partial);
    block.count *= 2;
  }
}

std::vector<BlockSum> TreeSum::take(int64_t first, int64_t count) {
  const std::lock_guard lock(mutex_);
  int64_t next = first;
  for (const auto& [begin, block] : blocks_) {
    DOVETAIL_CHECK(begin == next, "shard {} has no partial", next);
    next += block.count;
  }
  DOVETAIL_CHECK(next == first + count, "partials of shards [{}, {}), not [{}, {})", first, next,
                 first, first + count);
  std::vector<BlockSum> blocks;
  for (auto& [begin, block] : blocks_) blocks.push_back(std::move(block));
  blocks_.clear();
  return blocks;
}

Partial sum_of(std::vector<BlockSum> blocks) {
  int64_t next = 0;
  Partial sum;
  for (BlockSum& block : blocks) {
    DOVETAIL_CHECK(block.first == next, "a block from shard {} on after {} shards", block.first,
                   next);
    next += block.count;
    if (block.first == 0) {
      sum = std::move(block.partial);
    } else {
      sum.add(block.partial);
    }
  }
  return sum;
}

}  // namespace dovetail::jobs
