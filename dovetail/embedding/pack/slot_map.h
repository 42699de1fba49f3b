#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::embedding {

/// Hash map from integer keys to slots, which are 32-bit numbers that the caller chooses. It uses
/// open addressing with linear probing. At most two thirds of its places are taken. Erasing leaves
/// no tombstone: later keys of the probe sequence move up.
template <class Key>
class SlotMap {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// Reserves room for `keys` keys.
  explicit SlotMap(int64_t keys) : places_(static_cast<size_t>(places_for(keys))) {}

  /// Returns the bytes of a map with room for `keys` keys.
  static int64_t bytes_for(int64_t keys) {
    return places_for(keys) * static_cast<int64_t>(sizeof(Place));
  }

  int64_t bytes() const { return static_cast<int64_t>(places_.size() * sizeof(Place)); }
  int64_t size() const { return size_; }
  /// Returns the maximum number of keys.
  int64_t room() const { return static_cast<int64_t>(places_.size()) * 2 / 3; }

  /// Returns the key's slot, or kNone.
  uint32_t find(Key key) const { return places_[place_of(key)].slot; }

  /// Inserts a key that is not present. Throws InternalError if the map is full.
  void insert(Key key, uint32_t slot) {
    DOVETAIL_CHECK(size_ < room(), "a map of {} keys is full", room());
    places_[place_of(key)] = {key, slot};
    ++size_;
  }

  /// Erases a key that is present.
  void erase(Key key) {
    size_t hole = place_of(key);
    places_[hole] = {};
    --size_;
    for (size_t at = next(hole); places_[at].slot != kNone; at = next(at)) {
      // Keep a key whose home is cyclically between the hole and its place: the hole precedes its
      // home.
      const size_t home = home_of(places_[at].key);
      const bool behind = hole <= at ? hole < home && home <= at : hole < home || home <= at;
      if (behind) continue;
      places_[hole] = std::exchange(places_[at], {});
      hole = at;
    }
  }

  /// Makes room for `keys` keys; there must be no more keys than that.
  void resize(int64_t keys) {
    SlotMap larger(keys);
    for (const Place& place : places_)
      if (place.slot != kNone) larger.insert(place.key, place.slot);
    *this = std::move(larger);
  }

  /// Prefetches the place where a search for the key starts.
  void prefetch(Key key) const { __builtin_prefetch(&places_[home_of(key)]); }

 private:
  struct Place {
    Key key = 0;
    uint32_t slot = kNone;
  };

  static int64_t places_for(int64_t keys) { return keys + keys / 2 + 3; }

  /// Returns the place where a search for the key starts.
  size_t home_of(Key key) const {
    // Two rounds of a multiplicative mix spread sequential keys and keys with equal low bits. Then
    // Lemire's range reduction (ACM TOMACS 2019) maps them to places.
    uint64_t x = static_cast<uint64_t>(key) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 31) * 0x94D049BB133111EB;
    __extension__ using Product = unsigned __int128;
    return static_cast<size_t>(Product{x ^ x >> 29} * places_.size() >> 64);
  }

  size_t next(size_t place) const { return place + 1 == places_.size() ? 0 : place + 1; }

  /// Returns the place of the key, or the free place where it would go.
  size_t place_of(Key key) const {
    size_t place = home_of(key);
    while (places_[place].slot != kNone && places_[place].key != key) place = next(place);
    return place;
  }

  std::vector<Place> places_;
  int64_t size_ = 0;
};

}  // namespace dovetail::embedding
