#include "dovetail/data/text/word_cache.h"

#include <algorithm>
#include <functional>

namespace dovetail::data {

size_t WordCache::place_of(std::string_view word) const {
  size_t place = std::hash<std::string_view>{}(word) & (kSlots - 1);
  while (slots_[place].length != 0 &&
         std::string_view(text_).substr(slots_[place].text, slots_[place].length) != word)
    place = (place + 1) & (kSlots - 1);
  return place;
}

bool WordCache::append_known(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > kLongest) return false;
  const Slot& slot = slots_[place_of(word)];
  if (slot.length == 0) return false;
  ids.insert(ids.end(), ids_.begin() + slot.ids, ids_.begin() + slot.ids + slot.count);
  return true;
}

void WordCache::remember(std::string_view word, const std::vector<int32_t>& ids) {
  if (word.empty() || word.size() > kLongest) return;
  if (2 * (used_ + 1) > kSlots) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    text_.clear();
    ids_.clear();
    used_ = 0;
  }
  slots_[place_of(word)] = {static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(ids_.size()),
                            static_cast<uint16_t>(word.size()), static_cast<uint16_t>(ids.size())};
  text_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

}  // namespace dovetail::data
