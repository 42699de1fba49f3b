#pragma once

#include <cstdint>

#include "dovetail/base/host_device.h"

/// Sort orders and constants of routing (moe/routing.h) that the CPU code and the GPU kernels
/// share.
namespace dovetail::moe {

/// Replaces smaller sums of scores, so that no quotient is infinite.
inline constexpr double kLeastSum = 1e-20;

/// Returns true if entry (value, index) precedes entry (other_value, other_index). Values descend;
/// ties go to the lowest index.
template <class T>
DOVETAIL_HOST_DEVICE bool stands_before(T value, int64_t index, T other_value,
                                        int64_t other_index) {
  return value > other_value || (value == other_value && index < other_index);
}

/// Sequence in which choices take slots. A choice is one of the k experts of a token.
struct SlotSequence {
  const int64_t* order;  ///< (tokens): token indices in their order; null: ascending
  int64_t tokens, k;
  /// True: all choices of the first token, then of the second and so on. False: the first choices
  /// of all tokens, then the second choices and so on.
  bool by_token;

  DOVETAIL_HOST_DEVICE int64_t size() const { return tokens * k; }
  /// Returns the i-th choice of the sequence as t k + j: choice j of token t.
  DOVETAIL_HOST_DEVICE int64_t choice(int64_t i) const {
    const int64_t place = by_token ? i / k : i % tokens, j = by_token ? i % k : i / tokens;
    return (order == nullptr ? place : order[place]) * k + j;
  }
};

/// Size of a tile: the number of choices of a sequence that one thread block numbers.
inline constexpr int kSlotTile = 256;
/// Returns the number of tiles of a sequence with `size` choices.
DOVETAIL_HOST_DEVICE inline int64_t slot_tiles(int64_t size) {
  return (size + kSlotTile - 1) / kSlotTile;
}

/// Numbers of keys that equal a chosen key: `before` it and `behind` it in the list.
struct Equals {
  int32_t before, behind;
};
/// Counts the keys equal to keys[i] among keys[0, i) and keys[i + 1, size).
DOVETAIL_HOST_DEVICE inline Equals equal_keys(const int32_t* keys, int size, int i) {
  Equals found{0, 0};
  for (int j = 0; j < i; ++j) found.before += keys[j] == keys[i] ? 1 : 0;
  for (int j = i + 1; j < size; ++j) found.behind += keys[j] == keys[i] ? 1 : 0;
  return found;
}

}  // namespace dovetail::moe
