#pragma once

#include <cstdint>
#include <vector>

namespace dovetail::plan {

/// Addresses are multiples of kAlignment; those of storages of kPagedBytes or more, of a page, as
/// are their sizes in a plan, so that they can go to a file and back without a copy in between.
inline constexpr int64_t kAlignment = 64, kPage = 4096, kPagedBytes = 32 * 1024;

/// The bytes that a plan counts for a storage of `bytes`.
int64_t planned_bytes(int64_t bytes);
/// What the address of one is a multiple of.
int64_t alignment_of(int64_t bytes);

/// A block of memory that is held over some spans of time, [first, second) each, at one address.
struct Block {
  int64_t bytes = 0;
  std::vector<std::pair<int, int>> spans;  ///< ascending, disjoint
  bool anywhere = false;                   ///< at any address: its alignment does not count
};

/// Addresses for blocks so that no two that are held at one time overlap, by first fit in several
/// orders. Blocks of each order then move forward while the end comes no higher (the problem is
/// NP-hard; see Sekiyama et al. 2018), until it is at `enough` or below. The same arguments give
/// the same addresses.
struct Packing {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;  ///< end of the last block
};
Packing pack(const std::vector<Block>& blocks, int64_t enough = 0);

}  // namespace dovetail::plan
