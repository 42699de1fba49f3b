#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::data {

/// Cache that maps a word to its token ids, since most words of a text are repeats. Holds at most
/// kSlots / 2 words, and drops all of them when it is full.
class WordCache {
 public:
  WordCache() : slots_(kSlots) {}

  /// If the word is cached, appends its token ids to `ids` and returns true. Otherwise returns
  /// false.
  bool append_known(std::string_view word, std::vector<int32_t>& ids) const;
  /// Caches a word with its token ids. Does nothing for words of more than kLongest bytes, since
  /// they hardly repeat.
  void remember(std::string_view word, const std::vector<int32_t>& ids);

 private:
  static constexpr size_t kSlots = size_t{1} << 16;
  static constexpr size_t kLongest = 32;
  /// Cached word, or an empty slot (length 0).
  struct Slot {
    uint32_t text = 0, ids = 0;      ///< offsets of the word in text_ and of its tokens in ids_
    uint16_t length = 0, count = 0;  ///< bytes of the word, and number of its tokens
  };

  /// Returns the index of the slot that holds the word, or of the empty slot where it belongs.
  size_t place_of(std::string_view word) const;

  std::vector<Slot> slots_;   ///< hash table with open addressing
  std::string text_;          ///< all cached words, one after another
  std::vector<int32_t> ids_;  ///< tokens of all cached words, one word after another
  size_t used_ = 0;           ///< number of cached words
};

}  // namespace dovetail::data
