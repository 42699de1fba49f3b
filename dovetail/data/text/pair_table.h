#pragma once

#include <cstdint>
#include <vector>

namespace dovetail::data {

/// Hash table that maps a pair of token ids (both >= 0) to a Value. It uses open addressing; pairs
/// cannot be removed. Its lookups are the inner loop of BPE. A std::unordered_map would have one
/// more cache miss per lookup.
template <class Value>
class PairTable {
 public:
  PairTable() : slots_(16) {}

  /// Returns the value of a pair, or null if the table does not have the pair.
  const Value* find(int32_t left, int32_t right) const {
    const Slot& slot = slots_[place_of(key_of(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.value;
  }

  /// Returns the value of a pair. If the table does not have the pair, first inserts it with a
  /// default value. Invalidates pointers and references that `find` and `at` returned before.
  Value& at(int32_t left, int32_t right) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    const uint64_t key = key_of(left, right);
    Slot& slot = slots_[place_of(key)];
    if (slot.key == kEmpty) {
      slot.key = key;
      ++used_;
    }
    return slot.value;
  }

  template <class Visit>  // called as visit(left, right, value)
  void for_each(Visit&& visit) {
    for (Slot& slot : slots_)
      if (slot.key != kEmpty)
        visit(static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key), slot.value);
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Value value{};
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  /// Returns the index of the slot that holds the key, or of the empty slot where it belongs.
  size_t place_of(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    uint64_t hash = key * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
    size_t place = static_cast<size_t>(hash) & mask;
    while (slots_[place].key != key && slots_[place].key != kEmpty) place = (place + 1) & mask;
    return place;
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (Slot& slot : old)
      if (slot.key != kEmpty) slots_[place_of(slot.key)] = std::move(slot);
  }

  std::vector<Slot> slots_;  ///< size is a power of two; at most half are used
  size_t used_ = 0;
};

}  // namespace dovetail::data
