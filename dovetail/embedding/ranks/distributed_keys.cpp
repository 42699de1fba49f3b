#include <ATen/ATen.h>

#include <limits>

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

}  // namespace

KeyCounts DistributedTables::to_rank_zero(const KeyCounts& own) const {
  const std::vector<int64_t> counts = counts_of_ranks(own.keys.numel());
  KeyCounts all{.keys = to_rank_zero(own.keys, counts),
                .occurrences = to_rank_zero(own.occurrences, counts),
                .last_step = to_rank_zero(own.last_step, counts),
                .removed = to_rank_zero(own.removed, counts_of_ranks(own.removed.numel()))};
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

KeyedRows DistributedTables::read_keys(int64_t table, RowSet which) const {
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table), dim = spec_.tables[static_cast<size_t>(table)].dim;
  const at::Tensor none = at::empty({0}, at::kLong);
  KeyedRows own{
      .known = {none, none, none, none},
      .weight = at::empty({0, stored_width(spec_.row_dtype, dim)}, stored_type(spec_.row_dtype)),
      .state = at::empty({0, state_per_row(spec_, table)}, at::kFloat),
      .candidates = {none, none, none, none}};
  const bool replicated =
      plan_.tables[static_cast<size_t>(table)].sharding == Sharding::kReplicated;
  if (local >= 0 && (!replicated || group_->rank() == 0))
    own = pack.hashed()->contents(local, which);
  if (plan_.ranks == 1) return own;
  const std::vector<int64_t> counts = counts_of_ranks(own.known.keys.numel());
  KeyedRows all{.known = to_rank_zero(own.known),
                .weight = to_rank_zero(own.weight, counts),
                .state = to_rank_zero(own.state, counts),
                .candidates = to_rank_zero(own.candidates)};
  if (group_->rank() != 0) return all;
  const at::Tensor order = ascending(all.known.keys);
  return {.known = select(all.known, order),
          .weight = all.weight.index_select(0, order),
          .state = all.state.index_select(0, order),
          .candidates = select(all.candidates, ascending(all.candidates.keys))};
}

void DistributedTables::write_keys(int64_t table, const KeyedRows& contents) {
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
  if (plan_.ranks > 1 && plan_.tables[static_cast<size_t>(table)].sharding == Sharding::kRowWise) {
    const auto places = [&](const KeyCounts& counts) {
      return own_places(counts.keys, group_->rank(), plan_.ranks);
    };
    const at::Tensor own = places(all.known);
    all = {.known = select(all.known, own),
           .weight = all.weight.index_select(0, own),
           .state = all.state.index_select(0, own),
           .candidates = select(all.candidates, places(all.candidates))};
  }
  pack.hashed()->load(local, all);
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
