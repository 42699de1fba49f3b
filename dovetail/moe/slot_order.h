#pragma once

#include <cstdint>

#include "dovetail/base/host_device.h"

/// Orders that the CPU and the GPU kernels share.
namespace dovetail::moe {

/// Returns true if an entry precedes another one: values descend, ties go to the lowest index.
template <class T>
DOVETAIL_HOST_DEVICE bool stands_before(T value, int64_t index, T other_value,
                                        int64_t other_index) {
  return value > other_value || (value == other_value && index < other_index);
}

/// Sequence in which choices take slots. by_token: token by token. Otherwise all first choices,
/// then all second choices and so on. Tokens come in `order`; null: by index.
struct SlotSequence {
  const int64_t* order;
  int64_t tokens, k;
  bool by_token;

  DOVETAIL_HOST_DEVICE int64_t size() const { return tokens * k; }
  /// Returns the i-th choice of the sequence as t k + j: choice j of token t.
  DOVETAIL_HOST_DEVICE int64_t choice(int64_t i) const {
    const int64_t place = by_token ? i / k : i % tokens, j = by_token ? i % k : i / tokens;
    return (order == nullptr ? place : order[place]) * k + j;
  }
};

/// Number of entries of a sequence that one thread block ranks.
inline constexpr int kSlotTile = 256;
DOVETAIL_HOST_DEVICE inline int64_t slot_tiles(int64_t size) {
  return (size + kSlotTile - 1) / kSlotTile;
}

/// Number of keys before and after keys[i] that are equal to it.
struct Equals {
  int32_t before, behind;
};
DOVETAIL_HOST_DEVICE inline Equals equal_keys(const int32_t* keys, int size, int i) {
  Equals found{0, 0};
  for (int j = 0; j < i; ++j) found.before += keys[j] == keys[i] ? 1 : 0;
  for (int j = i + 1; j < size; ++j) found.behind += keys[j] == keys[i] ? 1 : 0;
  return found;
}

}  // namespace dovetail::moe
