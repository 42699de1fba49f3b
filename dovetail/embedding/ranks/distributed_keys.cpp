#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/embedding/ranks/distributed.h"

namespace dovetail::embedding {

namespace {

/// Returns the order that sorts int64 keys as unsigned numbers.
at::Tensor ascending(const at::Tensor& keys) {
  return at::argsort(keys ^ std::numeric_limits<int64_t>::min());
}

KeyCounts select(const KeyCounts& counts, const at::Tensor& places) {
  return {.keys = counts.keys.index_select(0, places),
          .occurrences = counts.occurrences.index_select(0, places),
          .last_step = counts.last_step.index_select(0, places),
          .removed = counts.removed};
}

/// Positions of the keys that `rank` holds if the table is row-wise.
at::Tensor own_places(const at::Tensor& keys, int64_t rank, int64_t ranks) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < keys.numel(); ++i)
    if (static_cast<uint64_t>(keys.const_data_ptr<int64_t>()[i]) % static_cast<uint64_t>(ranks) ==
        static_cast<uint64_t>(rank))
      places.push_back(i);
  return at::tensor(places, at::kLong);
}

KeyedRows no_keys() {
  const at::Tensor none = at::empty({0}, at::kLong);
  return {.known = {none, none, none, none},
          .weight = {},
          .state = {},
          .candidates = {none, none, none, none}};
}

}  // namespace

KeyCounts DistributedTables::to_rank_zero(const KeyCounts& own) const {
  const std::vector<int64_t> counts = counts_of_ranks(own.keys.numel());
  KeyCounts all{.keys = to_rank(0, own.keys, counts),
                .occurrences = to_rank(0, own.occurrences, counts),
                .last_step = to_rank(0, own.last_step, counts),
                .removed = to_rank(0, own.removed, counts_of_ranks(own.removed.numel()))};
  if (group_->rank() != 0) return all;
  all.removed = all.removed.index_select(0, ascending(all.removed));
  return all;
}

KeyCounts DistributedTables::from_rank_zero(const KeyCounts& own) const {
  const auto whole = [&](const at::Tensor& part) {
    return from_rank_zero(part, {rows_of_rank_zero(part)}, at::kLong);
  };
  return {.keys = whole(own.keys),
          .occurrences = whole(own.occurrences),
          .last_step = whole(own.last_step)};
}

bool DistributedTables::sends_keys(int64_t table) const {
  const bool replicated =
      plan_.tables[static_cast<size_t>(table)].sharding == Sharding::kReplicated;
  return pack_of(table).local_table(table) >= 0 && (!replicated || group_->rank() == 0);
}

KeyedRows DistributedTables::own_keys(int64_t table, RowSet which) const {
  const ShardedPack& pack = pack_of(table);
  if (const int64_t local = pack.local_table(table); local >= 0)
    return pack.hashed()->keys(local, which);
  return no_keys();
}

TableContents DistributedTables::own_rows(int64_t table, const at::Tensor& keys) const {
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table);
  DOVETAIL_CHECK(local >= 0, "this rank has no keys of table {}", table);
  auto [weight, state] = pack.hashed()->rows(local, keys);
  return {.weight = std::move(weight), .state = std::move(state)};
}

KeyedRows DistributedTables::list_keys(int64_t table, RowSet which) const {
  const KeyedRows own = sends_keys(table) ? own_keys(table, which) : no_keys();
  if (plan_.ranks == 1) return own;
  KeyedRows all{.known = to_rank_zero(own.known),
                .weight = {},
                .state = {},
                .candidates = to_rank_zero(own.candidates)};
  if (group_->rank() != 0) return all;
  return {.known = select(all.known, ascending(all.known.keys)),
          .weight = {},
          .state = {},
          .candidates = select(all.candidates, ascending(all.candidates.keys))};
}

void DistributedTables::read_rows(
    int64_t table, const at::Tensor& keys, int64_t block,
    const std::function<void(int64_t first, const TableContents& rows)>& body) const {
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table), dim = spec_.tables[static_cast<size_t>(table)].dim;
  const int64_t n = rows_of_rank_zero(keys);
  for (int64_t first = 0; first == 0 || first < n; first += block) {
    const int64_t count = std::min(block, n - first);
    const at::Tensor wanted = from_rank_zero(
        group_->rank() == 0 ? keys.narrow(0, first, count) : at::Tensor(), {count}, at::kLong);
    TableContents own{
        .weight = at::empty({0, stored_width(spec_.row_dtype, dim)}, stored_type(spec_.row_dtype)),
        .state = at::empty({0, state_per_row(spec_, table)}, at::kFloat)};
    if (sends_keys(table))
      std::tie(own.weight, own.state) = pack.hashed()->rows(
          local, cut_by_rows(table)
                     ? wanted.index_select(0, own_places(wanted, group_->rank(), plan_.ranks))
                     : wanted);
    const std::vector<int64_t> counts = counts_of_ranks(own.weight.size(0));
    TableContents all{.weight = to_rank(0, own.weight, counts),
                      .state = to_rank(0, own.state, counts)};
    if (group_->rank() != 0) continue;
    if (cut_by_rows(table)) {
      std::vector<at::Tensor> places;
      for (int64_t r = 0; r < plan_.ranks; ++r)
        places.push_back(own_places(wanted, r, plan_.ranks));
      const at::Tensor order = at::argsort(at::cat(places));
      all = {.weight = all.weight.index_select(0, order),
             .state = all.state.index_select(0, order)};
    }
    body(first, all);
  }
}

KeyedRows DistributedTables::read_keys(int64_t table, RowSet which) const {
  KeyedRows all = list_keys(table, which);
  read_rows(table, all.known.keys, std::numeric_limits<int64_t>::max(),
            [&](int64_t, const TableContents& rows) {
              all.weight = rows.weight;
              all.state = rows.state;
            });
  return all;
}

void DistributedTables::add_keys(int64_t table, const KeyedRows& contents) {
  ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table), dim = spec_.tables[static_cast<size_t>(table)].dim;
  KeyedRows all = contents;
  if (plan_.ranks > 1) {
    const auto rows = [&](const at::Tensor& part, int64_t width, at::ScalarType dtype) {
      return from_rank_zero(part, {rows_of_rank_zero(part), width}, dtype);
    };
    all.known = from_rank_zero(contents.known);
    all.weight =
        rows(contents.weight, stored_width(spec_.row_dtype, dim), stored_type(spec_.row_dtype));
    const int64_t state = state_per_row(spec_, table);
    all.state = state > 0 ? rows(contents.state, state, at::kFloat)
                          : at::empty({all.known.keys.numel(), 0}, at::kFloat);
    all.candidates = from_rank_zero(contents.candidates);
  }
  if (local < 0) return;
  if (cut_by_rows(table)) {
    const auto places = [&](const KeyCounts& counts) {
      return own_places(counts.keys, group_->rank(), plan_.ranks);
    };
    const at::Tensor own = places(all.known);
    all = {.known = select(all.known, own),
           .weight = all.weight.index_select(0, own),
           .state = all.state.index_select(0, own),
           .candidates = select(all.candidates, places(all.candidates))};
  }
  pack.hashed()->add(local, all);
}

void DistributedTables::remove_keys(int64_t table, const KeyedRows& removed) {
  const auto whole = [&](const at::Tensor& keys) {
    return from_rank_zero(keys, {rows_of_rank_zero(keys)}, at::kLong);
  };
  KeyedRows all;
  all.known.removed = whole(removed.known.removed);
  all.candidates.removed = whole(removed.candidates.removed);
  ShardedPack& pack = pack_of(table);
  if (const int64_t local = pack.local_table(table); local >= 0) pack.hashed()->remove(local, all);
}

void DistributedTables::clear_keys(int64_t table) {
  ShardedPack& pack = pack_of(table);
  if (const int64_t local = pack.local_table(table); local >= 0) pack.hashed()->clear(local);
}

void DistributedTables::write_keys(int64_t table, const KeyedRows& contents) {
  clear_keys(table);
  add_keys(table, contents);
}

std::optional<HashedCounters> DistributedTables::hashed_counters() const {
  std::optional<HashedCounters> sum;
  for (size_t i = 0; i < packs_.size(); ++i) {
    const HashedTables* hashed = packs_[i]->hashed();
    const bool counted_elsewhere =
        plan_.packs[i].sharding == Sharding::kReplicated && group_->rank() != 0;
    if (hashed == nullptr || counted_elsewhere) continue;
    sum = sum ? *sum + hashed->counters() : hashed->counters();
  }
  return sum;
}

}  // namespace dovetail::embedding
