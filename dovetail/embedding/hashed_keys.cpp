#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "dovetail/base/error.h"
#include "dovetail/embedding/hashed.h"

namespace dovetail::embedding {

uint32_t HashedTables::Keys::insert(uint64_t key) {
  if (map_.size() == map_.room()) map_.resize(2 * map_.room());
  auto number = static_cast<uint32_t>(entries_.size());
  if (free_.empty()) {
    entries_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  entries_[number] = {.key = key, .taken = true};
  map_.insert(key, number);
  return number;
}

void HashedTables::Keys::erase(uint32_t number) {
  map_.erase(entries_[number].key);
  if (entries_[number].saved) removed_.push_back(entries_[number].key);
  entries_[number] = {};
  free_.push_back(number);
}

int64_t HashedTables::Keys::bytes() const {
  return SlotMap<uint64_t>::bytes_for(map_.room()) + static_cast<int64_t>(entries_.capacity() * sizeof(Entry)) +
         static_cast<int64_t>(free_.capacity() * sizeof(uint32_t) + removed_.capacity() * sizeof(uint64_t));
}

KeyCounts HashedTables::Keys::counts(const std::vector<int64_t>& numbers) const {
  const auto n = std::ssize(numbers);
  KeyCounts found{at::empty({n}, at::kLong), at::empty({n}, at::kLong), at::empty({n}, at::kLong)};
  for (int64_t i = 0; i < n; ++i) {
    const Entry& entry = entries_[static_cast<size_t>(numbers[static_cast<size_t>(i)])];
    found.keys.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(entry.key);
    found.occurrences.mutable_data_ptr<int64_t>()[i] = entry.occurrences;
    found.last_step.mutable_data_ptr<int64_t>()[i] = entry.last_step;
  }
  std::vector<uint64_t> gone;
  std::ranges::copy_if(removed_, std::back_inserter(gone), [&](uint64_t key) { return find(key) == kNone; });
  std::ranges::sort(gone);
  gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
  found.removed = at::empty({std::ssize(gone)}, at::kLong);
  std::ranges::copy(gone, found.removed.mutable_data_ptr<int64_t>());
  return found;
}

std::vector<int64_t> HashedTables::Keys::ascending(RowSet which) const {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].taken && (which == RowSet::kAll || entries_[i].changed)) numbers.push_back(static_cast<int64_t>(i));
  std::ranges::sort(numbers, {}, [&](int64_t i) { return entries_[static_cast<size_t>(i)].key; });
  return numbers;
}

void HashedTables::Keys::load(const KeyCounts& counts, const std::string& table) {
  *this = {};
  for (int64_t i = 0; i < counts.keys.numel(); ++i) {
    const auto key = static_cast<uint64_t>(counts.keys.const_data_ptr<int64_t>()[i]);
    user_check(find(key) == kNone, "embedding: key {} is there twice in what table \"{}\" is to load", key, table);
    Entry& entry = entries_[insert(key)];
    entry.occurrences = counts.occurrences.const_data_ptr<int64_t>()[i];
    entry.last_step = counts.last_step.const_data_ptr<int64_t>()[i];
  }
}

void HashedTables::Keys::forget_changes() {
  for (Entry& entry : entries_) {
    entry.changed = false;
    entry.saved = entry.taken;
  }
  removed_ = {};
}

}  // namespace dovetail::embedding
