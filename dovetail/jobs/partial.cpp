#include "dovetail/jobs/partial.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::jobs {

void Partial::add(const Partial& other) {
  weight += other.weight;
  if (other.of_shards.defined())
    of_shards = of_shards.defined() ? at::cat({of_shards, other.of_shards}) : other.of_shards;
  if (other.tensors.empty()) return;
  if (tensors.empty()) {
    tensors = other.tensors;
    return;
  }
  DOVETAIL_CHECK(tensors.size() == other.tensors.size(), "{} tensors and {}", tensors.size(),
                 other.tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].add_(other.tensors[i]);
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

std::vector<Block> blocks_of(int64_t first, int64_t count, int64_t most) {
  std::vector<Block> blocks;
  while (count > 0) {
    const auto left = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count)));
    const int64_t aligned = first == 0 ? left : first & -first;
    const int64_t size = std::min({left, aligned, most});
    blocks.push_back({first, size});
    first += size;
    count -= size;
  }
  return blocks;
}

double* ArrayTree::next() {
  close();
  if (free_.empty()) free_.push_back(at::empty({size_}, at::kDouble));
  levels_.push_back({1, std::move(free_.back())});
  free_.pop_back();
  open_ = true;
  auto* numbers = levels_.back().sum.mutable_data_ptr<double>();
  std::fill_n(numbers, size_, 0.0);
  return numbers;
}

/// Adds the last level to the previous ones as far as they have as many shards.
void ArrayTree::close() {
  if (!std::exchange(open_, false)) return;
  while (levels_.size() > 1 && levels_[levels_.size() - 2].count == levels_.back().count) {
    at::Tensor last = std::move(levels_.back().sum);
    levels_.pop_back();
    auto* to = levels_.back().sum.mutable_data_ptr<double>();
    const auto* from = last.const_data_ptr<double>();
    for (int64_t i = 0; i < size_; ++i) to[i] += from[i];
    levels_.back().count *= 2;
    free_.push_back(std::move(last));
  }
}

at::Tensor ArrayTree::take() {
  close();
  DOVETAIL_CHECK(levels_.size() == 1, "a block of shards in {} parts", levels_.size());
  at::Tensor sum = std::move(levels_[0].sum);
  levels_.clear();
  return sum;
}

Partial sum_of(std::vector<BlockSum> blocks) {
  int64_t next = 0;
  Partial sum;
  for (BlockSum& block : blocks) {
    DOVETAIL_CHECK(block.first == next, "a block from shard {} on after {} shards", block.first,
                   next);
    next += block.count;
    sum.add(block.partial);
  }
  DOVETAIL_CHECK(!sum.of_shards.defined() || sum.of_shards.size(0) == next,
                 "results of {} shards, not {}", sum.of_shards.size(0), next);
  return sum;
}

}  // namespace dovetail::jobs
