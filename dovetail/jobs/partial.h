#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace dovetail::jobs {

/// Additive result of a task (jobs/task.h) on a shard, a range of rows. It holds sums, never means:
/// the caller adds the partials of all shards and then divides once by their weight. A partial
/// without tensors is zero.
struct Partial {
  std::vector<at::Tensor> tensors;  ///< sums; their meaning depends on the task
  double weight = 0;                ///< number of rows, samples or tokens in the sums
  /// Results of each shard, (shards, ...), in the order of the shards. Undefined: none. They are
  /// not added: the partial of two blocks has the rows of both.
  at::Tensor of_shards = {};

  /// Adds the tensors and weight of `other` to this partial, in place. The shards of `other` follow
  /// the shards of this partial.
  void add(const Partial& other);
};

/// Sum of the partials of shards first to first + count - 1. `count` is a power of two, and `first`
/// is a multiple of `count`.
struct BlockSum {
  int64_t first = 0, count = 1;
  Partial partial;
};

/// Sum of partials along one fixed binary tree: shards 0 and 1, 2 and 3, then these sums in pairs,
/// and so on. Two sums are added only if they are children of one tree node. So the bits of the
/// result depend neither on the order of the `add` calls nor on who computed a shard. Memory:
/// partials are added as soon as possible. Only sums whose sibling is still missing are stored.
class TreeSum {
 public:
  /// Adds the partial of one shard (count = 1) or of a block of shards. Each shard must be added
  /// exactly once, in any order. Takes ownership of the tensors and may write into them.
  /// Thread-safe.
  void add(BlockSum block);

  /// Returns the sum over shards first to first + count - 1. It is split into as few blocks as
  /// possible, ascending by shard. Exactly these shards must have been added. The object is empty
  /// afterwards.
  std::vector<BlockSum> take(int64_t first, int64_t count);

 private:
  std::mutex mutex_;
  /// Blocks whose sibling has not been added yet. The key is their first shard.
  std::map<int64_t, BlockSum> blocks_;
};

/// Block of shards, as in BlockSum.
struct Block {
  int64_t first = 0, count = 1;
};
/// Returns shards first to first + count - 1 as few blocks of at most `most` shards, ascending.
/// `most` must be a power of two.
std::vector<Block> blocks_of(int64_t first, int64_t count, int64_t most);

/// Sum of arrays of float64 numbers along the tree of TreeSum, one array for each shard of a block.
/// A task that gets a block of shards adds in this way what it has summed in each of them.
class ArrayTree {
 public:
  explicit ArrayTree(int64_t size) : size_(size) {}

  /// Returns an array of `size` zeros for the sums of the next shard. It is valid until the next
  /// call. The array is aligned to 64 bytes.
  double* next();
  /// Returns the sum over all shards, (size) float64. Their number must be a power of two.
  at::Tensor take();

 private:
  void close();

  struct Level {
    int64_t count;
    at::Tensor sum;
  };
  int64_t size_;
  bool open_ = false;             ///< true if the last level is the array that `next` returned
  std::vector<Level> levels_;     ///< sums of earlier shards; each has more shards than the next
  std::vector<at::Tensor> free_;  ///< arrays that are no longer needed
};

/// Returns the sum of all blocks, added from left to right. The blocks must be consecutive, begin
/// with shard 0 and be as large as possible, as TreeSum::take returns them.
Partial sum_of(std::vector<BlockSum> blocks);

}  // namespace dovetail::jobs
