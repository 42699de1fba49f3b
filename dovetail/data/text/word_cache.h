#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::data {

/// Cache of the tokens of words, since most words of a text are repeats. Holds at most kSlots / 2
/// words, and drops all of them when it is full.
class WordCache {
 public:
  WordCache() : slots_(kSlots) {}

  /// Appends the word's tokens to `ids` and returns true if the word is cached.
  bool append_known(std::string_view word, std::vector<int32_t>& ids) const;
  /// Caches a word. Ignores words of more than kLongest bytes, since they hardly repeat.
  void remember(std::string_view word, const std::vector<int32_t>& ids);

 private:
  static constexpr size_t kSlots = size_t{1} << 16;
  static constexpr size_t kLongest = 32;
  struct Slot {
    uint32_t text = 0, ids = 0;  ///< offsets of the word in text_ and of its tokens in ids_
    uint16_t length = 0, count = 0;
  };

  size_t place_of(std::string_view word) const;

  std::vector<Slot> slots_;
  std::string text_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
};

}  // namespace dovetail::data
