#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace dovetail::jobs {

/// Additive result of a task on a shard: sums, and the number of rows, samples or tokens that they
/// cover. It never holds a mean: the caller divides the sum over all shards once.
struct Partial {
  std::vector<at::Tensor> tensors;
  double weight = 0;

  /// Adds `other` in place, tensor by tensor.
  void add(const Partial& other);
};

/// Sum over shards [first, first + count). `count` is a power of two, and `first` is a multiple of
/// it.
struct BlockSum {
  int64_t first = 0, count = 1;
  Partial partial;
};

/// Sum of partials along one fixed binary tree: shards 0 and 1, 2 and 3, then these sums in pairs,
/// and so on. The numbers of the shards alone determine which sums are added. So the bits do not
/// depend on who computed a shard, when, or on which node. Keeps one block, with its tensors, for
/// each gap that late shards leave.
class TreeSum {
 public:
  /// Adds a shard or a block of shards. Each shard must be added exactly once, in any order. Takes
  /// over the tensors of the partial. Thread-safe.
  void add(BlockSum block);

  /// Returns the sums over the shards [first, first + count), as the largest possible blocks in
  /// their order. Exactly these shards must have been added.
  std::vector<BlockSum> take(int64_t first, int64_t count);

 private:
  std::mutex mutex_;
  /// By first shard; two blocks that form a larger block are joined at once.
  std::map<int64_t, BlockSum> blocks_;
};

/// Adds consecutive blocks that begin with shard 0, from left to right. They must be the largest
/// possible blocks, as TreeSum::take returns them.
Partial sum_of(std::vector<BlockSum> blocks);

}  // namespace dovetail::jobs
