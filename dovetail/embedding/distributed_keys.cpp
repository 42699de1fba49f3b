#include <ATen/ATen.h>

#include <limits>

#include "dovetail/embedding/distributed.h"

namespace dovetail::embedding {

namespace {

/// Places of int64 keys in the order of their bits, without a sign.
at::Tensor ascending(const at::Tensor& keys) { return at::argsort(keys ^ std::numeric_limits<int64_t>::min()); }

KeyCounts select(const KeyCounts& counts, const at::Tensor& places) {
  return {counts.keys.index_select(0, places), counts.occurrences.index_select(0, places),
          counts.last_step.index_select(0, places)};
}

/// Rank 0's tensor on every rank; the others have one of its type and as many columns (0: of one dimension).
at::Tensor broadcast(Group& group, at::Tensor own, int64_t columns, at::ScalarType dtype) {
  at::Tensor rows = at::zeros({1}, at::kLong);
  if (group.rank() == 0) rows.fill_(own.size(0));
  group.broadcast(rows, 0);
  const int64_t n = rows.item<int64_t>();
  if (group.rank() != 0) own = columns > 0 ? at::empty({n, columns}, dtype) : at::empty({n}, dtype);
  own = own.contiguous();
  if (own.numel() == 0) return own;
  at::Tensor bytes = own.view(at::kByte);
  group.broadcast(bytes, 0);
  return own;
}

KeyCounts broadcast(Group& group, const KeyCounts& own) {
  return {broadcast(group, own.keys, 0, at::kLong), broadcast(group, own.occurrences, 0, at::kLong),
          broadcast(group, own.last_step, 0, at::kLong)};
}

/// Places of the keys that a rank holds of a table that is cut by rows.
at::Tensor own_places(const at::Tensor& keys, int64_t rank, int64_t ranks) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < keys.numel(); ++i)
    if (static_cast<uint64_t>(keys.const_data_ptr<int64_t>()[i]) % static_cast<uint64_t>(ranks) ==
        static_cast<uint64_t>(rank))
      places.push_back(i);
  return at::tensor(places, at::kLong);
}

}  // namespace

at::Tensor DistributedTables::gather_rows(const at::Tensor& own) const {
  const int64_t ranks = plan_.ranks, rank = group_->rank(), width = own.dim() == 2 ? own.size(1) : 1;
  // Rank r tells rank 0 how many it has.
  Splits one{std::vector<int64_t>(static_cast<size_t>(ranks), 0), std::vector<int64_t>(static_cast<size_t>(ranks), 0)};
  one.send[0] = 1;
  if (rank == 0) std::ranges::fill(one.receive, 1);
  const at::Tensor counts = Exchange(group_, one).start(at::full({1}, own.size(0), at::kLong)).wait();
  Splits splits{std::vector<int64_t>(static_cast<size_t>(ranks), 0), {}};
  splits.send[0] = own.numel();
  int64_t rows = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t of_rank = rank == 0 ? counts[r].item<int64_t>() : 0;
    rows += of_rank;
    splits.receive.push_back(of_rank * width);
  }
  const at::Tensor all = Exchange(group_, splits).start(own.contiguous().view(-1)).wait();
  if (rank != 0) return {};
  return own.dim() == 2 ? all.view({rows, width}) : all;
}

KeyCounts DistributedTables::gather_counts(const KeyCounts& own) const {
  return {gather_rows(own.keys), gather_rows(own.occurrences), gather_rows(own.last_step)};
}

KeyedRows DistributedTables::read_keys(int64_t table) const {
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table), dim = spec_.tables[static_cast<size_t>(table)].dim;
  const auto none = [] { return at::empty({0}, at::kLong); };
  KeyedRows own{.known = {none(), none(), none()},
                .weight = at::empty({0, stored_width(spec_.row_dtype, dim)}, stored_type(spec_.row_dtype)),
                .state = at::empty({0, state_per_row(spec_.optimizer.kind, dim)}, at::kFloat),
                .candidates = {none(), none(), none()}};
  const bool replicated = plan_.tables[static_cast<size_t>(table)].sharding == Sharding::kReplicated;
  if (local >= 0 && (!replicated || group_->rank() == 0)) own = pack.hashed()->contents(local);
  if (plan_.ranks == 1) return own;
  KeyedRows all{.known = gather_counts(own.known),
                .weight = gather_rows(own.weight),
                .state = gather_rows(own.state),
                .candidates = gather_counts(own.candidates)};
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
    const int64_t state = state_per_row(spec_.optimizer.kind, dim);
    all.known = broadcast(*group_, contents.known);
    all.weight = broadcast(*group_, contents.weight, stored_width(spec_.row_dtype, dim), stored_type(spec_.row_dtype));
    all.state = state > 0 ? broadcast(*group_, contents.state, state, at::kFloat)
                          : at::empty({all.known.keys.numel(), 0}, at::kFloat);
    all.candidates = broadcast(*group_, contents.candidates);
  }
  if (local < 0) return;
  if (plan_.ranks > 1 && plan_.tables[static_cast<size_t>(table)].sharding == Sharding::kRowWise) {
    const auto places = [&](const KeyCounts& counts) { return own_places(counts.keys, group_->rank(), plan_.ranks); };
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
    const bool counted_elsewhere = plan_.packs[i].sharding == Sharding::kReplicated && group_->rank() != 0;
    if (hashed == nullptr || counted_elsewhere) continue;
    sum = sum ? *sum + hashed->counters() : hashed->counters();
  }
  return sum;
}

}  // namespace dovetail::embedding
