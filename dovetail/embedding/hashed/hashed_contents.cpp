#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/embedding/hashed/hashed.h"
#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::embedding {

namespace {

uint64_t key_at(const at::Tensor& keys, int64_t i) {
  return static_cast<uint64_t>(keys.const_data_ptr<int64_t>()[i]);
}

/// Returns the first key that occurs a second time.
std::optional<uint64_t> repeated(const at::Tensor& keys) {
  SlotMap<uint64_t> seen(keys.numel());
  for (int64_t i = 0; i < keys.numel(); ++i) {
    if (seen.find(key_at(keys, i)) != SlotMap<uint64_t>::kNone) return key_at(keys, i);
    seen.insert(key_at(keys, i), 0);
  }
  return std::nullopt;
}

}  // namespace

HashedTables::Table& HashedTables::between_steps(int64_t t) const {
  user_check(!in_step_,
             "embedding: contents of a hashed table are read or written within a step; call end "
             "first");
  return *tables_.at(static_cast<size_t>(t));
}

KeyedRows HashedTables::keys(int64_t t, RowSet which) const {
  const Table& table = between_steps(t);
  return {.known = table.keys.counts(table.keys.ascending(which)),
          .weight = {},
          .state = {},
          .candidates = table.candidates.counts(table.candidates.ascending(which))};
}

std::pair<at::Tensor, at::Tensor> HashedTables::rows(int64_t t, const at::Tensor& keys) const {
  const Table& table = between_steps(t);
  const at::Tensor numbers = at::empty_like(keys);
  for (int64_t i = 0; i < keys.numel(); ++i) {
    const uint32_t number = table.keys.find(key_at(keys, i));
    DOVETAIL_CHECK(number != kNone, "key {} has no row", key_at(keys, i));
    numbers.mutable_data_ptr<int64_t>()[i] = number;
  }
  if (!tiers_) {
    const at::Tensor rows = (numbers + 1).to(packed_->device());
    return {packed_->stored(t).index_select(0, rows).cpu(),
            packed_->packed_state(t).index_select(0, rows).cpu()};
  }
  const auto [ascending, order] = numbers.sort();
  const auto [weight, state] = tiers_->rows(t, ascending);
  const at::Tensor back = at::argsort(order);
  return {weight.index_select(0, back), state.index_select(0, back)};
}

at::Tensor HashedTables::look_up(int64_t t, const at::Tensor& keys) const {
  const Table& table = *tables_.at(static_cast<size_t>(t));
  std::vector<int64_t> numbers(static_cast<size_t>(keys.numel()), -1);
  std::vector<int64_t> present;
  for (int64_t i = 0; i < keys.numel(); ++i) {
    const uint32_t number = table.keys.find(key_at(keys, i));
    if (number == kNone) continue;
    numbers[static_cast<size_t>(i)] = number;
    present.push_back(i);
  }
  if (!tiers_)
    return gather_rows(*packed_, t, on(at::tensor(numbers, at::kLong) + 1, packed_->device()));
  at::Tensor found = at::zeros({keys.numel(), spec_.tables[static_cast<size_t>(t)].dim});
  const at::Tensor index = at::tensor(present, at::kLong);
  return found.index_copy_(
      0, index, tiers_->look_up(t, at::tensor(numbers, at::kLong).index_select(0, index)));
}

KeyedRows HashedTables::contents(int64_t t, RowSet which) const {
  KeyedRows found = keys(t, which);
  std::tie(found.weight, found.state) = rows(t, found.known.keys);
  return found;
}

void HashedTables::check_shapes(int64_t t, const KeyedRows& contents) const {
  const TableSpec& spec = spec_.tables[static_cast<size_t>(t)];
  const auto check = [&](const char* name, const at::Tensor& x, at::IntArrayRef sizes,
                         at::ScalarType dtype) {
    user_check(x.defined() && x.sizes() == sizes && x.scalar_type() == dtype && x.is_cpu() &&
                   x.is_contiguous(),
               "embedding: {} of table \"{}\" must be {} {}, contiguous, on the CPU, but is {}",
               name, spec.name, fmt::format("({})", fmt::join(sizes, ", ")), c10::toString(dtype),
               ops::describe(x));
  };
  const auto check_counts = [&](const KeyCounts& counts, const char* what) {
    user_check(counts.keys.defined(), "embedding: there are no {} for table \"{}\"", what,
               spec.name);
    const int64_t n = counts.keys.numel();
    check(what, counts.keys, {n}, at::kLong);
    check("occurrences", counts.occurrences, {n}, at::kLong);
    check("last_step", counts.last_step, {n}, at::kLong);
    return n;
  };
  const int64_t n = check_counts(contents.known, "keys");
  check_counts(contents.candidates, "candidates");
  check("weight", contents.weight, {n, stored_width(spec_.row_dtype, spec.dim)},
        stored_type(spec_.row_dtype));
  check("state", contents.state, {n, tables_[static_cast<size_t>(t)]->state_width}, at::kFloat);
  for (const KeyCounts* counts : {&contents.known, &contents.candidates})
    if (const std::optional<uint64_t> key = repeated(counts->keys))
      throw UserError(fmt::format(
          "embedding: key {} is there twice in what table \"{}\" is to load", *key, spec.name));
}

void HashedTables::add(int64_t t, const KeyedRows& contents) {
  Table& table = between_steps(t);
  check_shapes(t, contents);
  int64_t rows = table.keys.size();
  for (int64_t i = 0; i < contents.known.keys.numel(); ++i)
    if (table.keys.find(key_at(contents.known.keys, i)) == kNone) ++rows;
  user_check(rows <= table.rows,
             "embedding: table \"{}\" may have {} rows, but {} are to be loaded; raise its {}",
             spec_.tables[static_cast<size_t>(t)].name, table.rows, rows,
             table.capped ? "max_bytes" : "rows");
  set_rows(t, table.keys.put(contents.known), contents);
  table.candidates.put(contents.candidates);
}

/// Writes rows and state of the keys with these entry numbers.
void HashedTables::set_rows(int64_t t, const at::Tensor& numbers, const KeyedRows& contents) {
  const Table& table = *tables_[static_cast<size_t>(t)];
  const auto* number = numbers.const_data_ptr<int64_t>();
  const int64_t count = numbers.numel();
  if (!tiers_) {
    std::vector<RowMove> coming;
    coming.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      coming.push_back({.slot = number[i] + 1, .row = number[i], .evicted = -1});
    SlotMover::Moves moves(tables_.size());
    moves[static_cast<size_t>(t)] = coming;
    const auto* rows = static_cast<const char*>(contents.weight.const_data_ptr());
    const auto* states = contents.state.const_data_ptr<float>();
    return mover_->move(moves,
                        [&](int64_t, int64_t i, char* stored, float* state) {
                          std::copy_n(rows + i * table.row_bytes, table.row_bytes, stored);
                          std::copy_n(states + i * table.state_width, table.state_width, state);
                        },
                        {});
  }
  for (int64_t i = 0, end = 0; i < count; i = end) {
    for (end = i + 1; end < count && number[end] == number[end - 1] + 1;) ++end;
    tiers_->set_rows(t, number[i], contents.weight.narrow(0, i, end - i),
                     contents.state.narrow(0, i, end - i));
  }
}

void HashedTables::remove(int64_t t, const KeyedRows& removed) {
  Table& table = between_steps(t);
  if (tiers_) tiers_->settle();
  for (int64_t i = 0; i < removed.known.removed.numel(); ++i)
    if (const uint32_t number = table.keys.find(key_at(removed.known.removed, i)); number != kNone)
      erase(t, number);
  for (int64_t i = 0; i < removed.candidates.removed.numel(); ++i)
    if (const uint32_t number = table.candidates.find(key_at(removed.candidates.removed, i));
        number != kNone)
      table.candidates.erase(number);
}

void HashedTables::clear(int64_t t) {
  Table& table = between_steps(t);
  if (tiers_) {
    tiers_->settle();
    for (int64_t row = 0; row < std::ssize(table.keys.entries()); ++row) tiers_->release(t, row);
  }
  table.keys.clear();
  table.candidates.clear();
}

}  // namespace dovetail::embedding
