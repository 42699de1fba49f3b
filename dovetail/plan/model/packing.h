#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace dovetail::plan {

/// Alignment of addresses, in bytes. All addresses are multiples of kAlignment. A storage of
/// kPagedBytes or more has a multiple of kPage as its address, and as the size that a plan counts.
/// Such storages can be copied to a file and back without an intermediate copy.
inline constexpr int64_t kAlignment = 256, kPage = 4096, kPagedBytes = 32 * 1024;

/// Returns the bytes that a plan counts for a storage of `bytes`: its size rounded up to a multiple
/// of its alignment.
int64_t planned_bytes(int64_t bytes);
/// Returns the alignment of the address of a storage of `bytes`.
int64_t alignment_of(int64_t bytes);

/// Block of memory that is held at one address during some spans of time.
struct Block {
  int64_t bytes = 0;
  /// Spans [first, second) of discrete times, such as positions of actions; ascending and disjoint.
  std::vector<std::pair<int, int>> spans;
  bool anywhere = false;  ///< true: its address need not be aligned
};

/// Addresses of blocks, as byte offsets in one memory region. Blocks that are held at the same time
/// do not overlap.
struct Packing {
  std::vector<int64_t> offsets;  ///< one per block
  int64_t bytes = 0;             ///< size of the region: maximum of offset + size over all blocks
};
/// Finds a packing with few bytes. The problem is NP-hard (see Sekiyama et al. 2018). Steps:
/// 1. Sort the blocks in several orders, for example by size or by duration.
/// 2. For each order, place the blocks one by one, each at the lowest free offset (first fit).
/// 3. Improve each order: move a block to an earlier position if the packing does not grow.
///
/// The search ends when the packing has at most `enough` bytes, or after a fixed amount of work. It
/// ends after step 2 if every packing has at least `too_many` bytes. Equal arguments give equal
/// offsets.
Packing pack(const std::vector<Block>& blocks, int64_t enough = 0,
             int64_t too_many = std::numeric_limits<int64_t>::max());

}  // namespace dovetail::plan
