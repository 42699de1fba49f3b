#pragma once

#include <cstdint>
#include <vector>

namespace dovetail::plan {

/// Alignment of addresses, in bytes. Addresses are multiples of kAlignment. Storages of kPagedBytes
/// or more have addresses that are multiples of kPage, and their sizes in a plan are, too. They can
/// therefore be copied to a file and back without an intermediate copy.
inline constexpr int64_t kAlignment = 64, kPage = 4096, kPagedBytes = 32 * 1024;

/// Returns the bytes that a plan counts for a storage of `bytes`: its size rounded up to its
/// alignment.
int64_t planned_bytes(int64_t bytes);
/// Returns the alignment of the address of a storage of `bytes`.
int64_t alignment_of(int64_t bytes);

/// Block of memory that is held at one address during some time spans, [first, second) each.
struct Block {
  int64_t bytes = 0;
  std::vector<std::pair<int, int>> spans;  ///< ascending, disjoint
  bool anywhere = false;                   ///< any address will do; alignment does not apply
};

/// Addresses at which blocks that are held at the same time do not overlap. `pack` places blocks by
/// first fit in several orders. It then moves blocks of each order forward while the end does not
/// rise, until it is at most `enough`. The problem is NP-hard (see Sekiyama et al. 2018). Equal
/// arguments give equal addresses.
struct Packing {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;  ///< end of the last block
};
Packing pack(const std::vector<Block>& blocks, int64_t enough = 0);

}  // namespace dovetail::plan
