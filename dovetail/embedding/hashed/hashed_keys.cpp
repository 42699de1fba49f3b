#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "dovetail/base/error.h"
#include "dovetail/embedding/hashed/hashed.h"

namespace dovetail::embedding {

namespace {

constexpr int64_t kLineBytes = 64;

/// Bytes of a row in use: the row itself, its state and the hash that seeds its rounding.
int64_t bytes_of_row(const PackSpec& spec, const TableSpec& table) {
  const int64_t held =
      spec.row_dtype == RowDtype::kFloat32 ? 0 : static_cast<int64_t>(sizeof(int32_t));
  const int64_t state =
      state_per_row(spec.optimizer.kind, table.dim) * static_cast<int64_t>(sizeof(float));
  return row_bytes(spec.row_dtype, table.dim) + state + held;
}

}  // namespace

int64_t HashedTables::bytes_for(const PackSpec& spec, const TableSpec& table,
                                const HashedOptions& options, Changes changes, int64_t rows) {
  // Includes the row of zeros, and padding of rows and of state to a cache line each.
  return (rows + 1) * bytes_of_row(spec, table) + 2 * kLineBytes +
         bytes_of_keys(options, changes, rows);
}

/// Returns the bytes of the keys of a table that has `rows` rows, with its candidates.
int64_t HashedTables::bytes_of_keys(const HashedOptions& options, Changes changes, int64_t rows) {
  return Keys::bytes_for(rows, changes) + (options.admission == Admission::kCount
                                               ? Keys::bytes_for(options.max_candidates, changes)
                                               : Keys().bytes());
}

std::vector<TableMemory> HashedTables::least_memory(const PackSpec& spec,
                                                    const HashedOptions& options, Changes changes,
                                                    const TierOptions& tiers, bool apart) {
  const PackSpec all = limited(spec, options, changes, 0);
  std::vector<TableMemory> least = TieredTables::least_memory(all, tiers, apart);
  for (size_t t = 0; !apart && t < least.size(); ++t)
    least[t].keys = bytes_of_keys(options, changes, all.tables[t].rows);
  return least;
}

int64_t HashedTables::rows_within(const PackSpec& spec, const TableSpec& table,
                                  const HashedOptions& options, Changes changes) {
  if (table.max_bytes == 0) return table.rows;
  const auto bytes = [&](int64_t rows) { return bytes_for(spec, table, options, changes, rows); };
  user_check(bytes(1) <= table.max_bytes,
             "embedding: table \"{}\" has max_bytes = {}, but needs {} with one row, {} of them "
             "for max_candidates. Raise max_bytes, or lower max_candidates",
             table.name, table.max_bytes, bytes(1),
             options.admission == Admission::kCount
                 ? Keys::bytes_for(options.max_candidates, changes)
                 : 0);
  int64_t low = 1, high = table.rows;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (bytes(middle) <= table.max_bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

int64_t HashedTables::memory_bytes() const {
  int64_t bytes = 0;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = *tables_[t];
    bytes += table.keys.bytes() + table.candidates.bytes();
    if (!tiers_)
      bytes += (std::ssize(table.keys.entries()) + 1) * bytes_of_row(spec_, spec_.tables[t]);
  }
  return bytes + (tiers_ ? tiers_->memory_bytes() : 0);
}

HashedTables::Keys::Keys(int64_t most, Changes changes)
    : most_(most), changes_(changes), map_(most) {
  entries_.reserve(static_cast<size_t>(most));
  free_.reserve(static_cast<size_t>(most));
  if (changes == Changes::kTracked) removed_.reserve(static_cast<size_t>(most));
}

int64_t HashedTables::Keys::bytes_for(int64_t most, Changes changes) {
  const size_t of_key =
      sizeof(Entry) + sizeof(uint32_t) + (changes == Changes::kTracked ? sizeof(uint64_t) : 0);
  return SlotMap<uint64_t>::bytes_for(most) + most * static_cast<int64_t>(of_key);
}

void HashedTables::Keys::clear() {
  const int64_t most = most_;
  const Changes changes = changes_;
  *this = Keys();  // frees the old map before there is a new one
  if (most > 0) *this = Keys(most, changes);
}

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
  return map_.bytes() + static_cast<int64_t>(entries_.size() * sizeof(Entry)) +
         static_cast<int64_t>(free_.capacity() * sizeof(uint32_t) +
                              removed_.capacity() * sizeof(uint64_t));
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
  std::ranges::copy_if(removed_, std::back_inserter(gone),
                       [&](uint64_t key) { return find(key) == kNone; });
  std::ranges::sort(gone);
  gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
  found.removed = at::empty({std::ssize(gone)}, at::kLong);
  std::ranges::copy(gone, found.removed.mutable_data_ptr<int64_t>());
  return found;
}

std::vector<int64_t> HashedTables::Keys::ascending(RowSet which) const {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].taken && (which == RowSet::kAll || entries_[i].changed))
      numbers.push_back(static_cast<int64_t>(i));
  std::ranges::sort(numbers, {}, [&](int64_t i) { return entries_[static_cast<size_t>(i)].key; });
  return numbers;
}

at::Tensor HashedTables::Keys::put(const KeyCounts& counts) {
  at::Tensor numbers = at::empty_like(counts.keys);
  for (int64_t i = 0; i < counts.keys.numel(); ++i) {
    const auto key = static_cast<uint64_t>(counts.keys.const_data_ptr<int64_t>()[i]);
    uint32_t number = find(key);
    if (number == kNone) number = insert(key);
    Entry& entry = entries_[number];
    entry.occurrences = counts.occurrences.const_data_ptr<int64_t>()[i];
    entry.last_step = counts.last_step.const_data_ptr<int64_t>()[i];
    numbers.mutable_data_ptr<int64_t>()[i] = number;
  }
  return numbers;
}

void HashedTables::Keys::forget_changes() {
  for (Entry& entry : entries_) {
    entry.changed = false;
    entry.saved = entry.taken;
  }
  removed_.clear();
}

}  // namespace dovetail::embedding
