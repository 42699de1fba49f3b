#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace dovetail::jobs {

/// The additive result of a task on a shard: sums, and the weight behind them (rows, samples,
/// tokens). Never a mean: whoever has the sum over all shards divides once.
struct Partial {
  std::vector<at::Tensor> tensors;
  double weight = 0;

  /// Adds tensor by tensor, into this one's own.
  void add(const Partial& other);
};

/// The sum over shards [first, first + count): `count` is a power of two, and `first` a multiple of
/// it.
struct BlockSum {
  int64_t first = 0, count = 1;
  Partial partial;
};

/// The sum of partials along one binary tree: shard 0 and 1, 2 and 3, then those sums in pairs, and
/// so on. What is added to what follows from the numbers of the shards alone, so the bits do not
/// depend on who computed what, when, or on which node. Keeps a block for each gap that late shards
/// leave, and as many tensors as blocks.
class TreeSum {
 public:
  /// Each shard once, in any order, alone or in a block. Safe from several threads; takes the
  /// partial's tensors over.
  void add(BlockSum block);

  /// The largest blocks that [first, first + count) consists of, in their order. All of its shards
  /// must have come, and no others.
  std::vector<BlockSum> take(int64_t first, int64_t count);

 private:
  std::mutex mutex_;
  std::map<int64_t, BlockSum> blocks_;  ///< by their first shard; no two of them are a pair
};

/// The sum of blocks that follow one another from shard 0 on, the largest possible: the first and
/// the second, then the third, and so on.
Partial sum_of(std::vector<BlockSum> blocks);

}  // namespace dovetail::jobs
