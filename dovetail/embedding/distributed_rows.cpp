#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "dovetail/base/error.h"
#include "dovetail/embedding/distributed.h"

namespace dovetail::embedding {

at::Tensor DistributedTables::rows_sent(int64_t table, int64_t first, int64_t count, RowSet which) const {
  const PlannedTable& planned = plan_.tables[static_cast<size_t>(table)];
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table), rank = group_->rank(), ranks = plan_.ranks;
  if (local < 0 || (planned.sharding == Sharding::kReplicated && rank > 0)) return at::empty({0}, at::kLong);
  int64_t begin = first, end = first + count;
  if (planned.sharding == Sharding::kRowWise) {
    begin = (begin + ranks - 1 - rank) / ranks;
    end = (end + ranks - 1 - rank) / ranks;
  }
  return which == RowSet::kAll ? at::arange(begin, end, at::kLong) : pack.changed(local).within(begin, end);
}

std::vector<int64_t> DistributedTables::widths_of(int64_t table, int64_t width) const {
  std::vector<int64_t> widths(static_cast<size_t>(plan_.ranks), width);
  if (plan_.tables[static_cast<size_t>(table)].sharding != Sharding::kColumnWise) return widths;
  for (int64_t r = 0; r < plan_.ranks; ++r)
    widths[static_cast<size_t>(r)] =
        width / spec_.tables[static_cast<size_t>(table)].dim * local_table(spec_, plan_, table, r).dim;
  return widths;
}

std::vector<at::Tensor> DistributedTables::gather(const at::Tensor& own, const std::vector<int64_t>& counts,
                                                  const std::vector<int64_t>& widths, at::ScalarType dtype) const {
  if (plan_.ranks == 1) return {own};
  Splits splits{std::vector<int64_t>(counts.size(), 0), std::vector<int64_t>(counts.size(), 0)};
  const at::Tensor sent = own.defined() ? own.contiguous().view(-1) : at::empty({0}, dtype);
  splits.send[0] = sent.numel();
  if (group_->rank() == 0) std::ranges::transform(counts, widths, splits.receive.begin(), std::multiplies<>());
  const at::Tensor all = Exchange(group_, splits).start(sent).wait();
  if (group_->rank() != 0) return {};
  std::vector<at::Tensor> parts = all.split_with_sizes(splits.receive);
  for (size_t r = 0; r < parts.size(); ++r) parts[r] = parts[r].view({counts[r], widths[r]});
  return parts;
}

at::Tensor DistributedTables::put_together(int64_t table, const std::vector<at::Tensor>& parts,
                                           const at::Tensor& order) const {
  if (parts.empty()) return {};
  if (parts.size() == 1) return parts.front();
  if (plan_.tables[static_cast<size_t>(table)].sharding != Sharding::kColumnWise) {
    const at::Tensor rows = at::cat(parts);
    return order.defined() ? rows.index_select(0, order) : rows;
  }
  std::vector<at::Tensor> columns;
  for (size_t r = 0; r < parts.size(); ++r)
    columns.push_back(parts[r].view({parts[r].size(0), -1, local_table(spec_, plan_, table, int64_t(r)).dim}));
  return at::cat(columns, 2).flatten(1);
}

TableRows DistributedTables::read_rows(int64_t table, int64_t first, int64_t count, RowSet which) const {
  const TableSpec& spec = spec_.tables[static_cast<size_t>(table)];
  const Sharding sharding = plan_.tables[static_cast<size_t>(table)].sharding;
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table);
  const at::Tensor own = rows_sent(table, first, count, which);
  std::vector<int64_t> sent(static_cast<size_t>(plan_.ranks), 0);
  sent[0] = own.numel();
  const std::vector<int64_t> counts = plan_.ranks == 1 ? sent : exchange_sizes(*group_, sent).receive;
  const bool by_rows = plan_.ranks > 1 && sharding == Sharding::kRowWise;
  const at::Tensor numbers = by_rows ? own * plan_.ranks + group_->rank() : own;
  const std::vector<at::Tensor> all_numbers =
      gather(numbers, counts, std::vector<int64_t>(counts.size(), 1), at::kLong);
  TableRows found;
  at::Tensor order;
  if (group_->rank() == 0) {
    found.rows = sharding == Sharding::kColumnWise ? all_numbers.front().view(-1) : at::cat(all_numbers).view(-1);
    if (by_rows) std::tie(found.rows, order) = found.rows.sort();
  }
  const TableContents contents = own.numel() > 0 ? pack.read(local, own) : TableContents();
  const auto whole = [&](const at::Tensor& part, int64_t width, at::ScalarType dtype) {
    const std::vector<int64_t> widths = widths_of(table, width);
    const at::Tensor mine = part.defined() ? part : at::empty({0, widths[static_cast<size_t>(group_->rank())]}, dtype);
    return put_together(table, gather(mine, counts, widths, dtype), order);
  };
  found.contents.weight = whole(contents.weight, stored_width(spec_.row_dtype, spec.dim), stored_type(spec_.row_dtype));
  const int64_t state = state_per_row(spec_.optimizer.kind, spec.dim);
  if (state > 0) found.contents.state = whole(contents.state, state, at::kFloat);
  return found;
}

TableContents DistributedTables::read(int64_t table) const {
  return read_rows(table, 0, spec_.tables[static_cast<size_t>(table)].rows, RowSet::kAll).contents;
}

at::Tensor DistributedTables::own_columns(int64_t table, const at::Tensor& rows) const {
  if (plan_.tables[static_cast<size_t>(table)].sharding != Sharding::kColumnWise || rows.size(1) == 0) return rows;
  // One column of each weight, two of Adam's state.
  const TableSpec part = local_table(spec_, plan_, table, group_->rank());
  return rows.view({rows.size(0), -1, spec_.tables[static_cast<size_t>(table)].dim})
      .narrow(2, part.slice.first_column, part.dim)
      .flatten(1);
}

void DistributedTables::write_rows(int64_t table, const TableRows& given) {
  const TableSpec& spec = spec_.tables[static_cast<size_t>(table)];
  at::Tensor count = at::full({1}, given.rows.defined() ? given.rows.numel() : 0, at::kLong);
  group_->broadcast(count, 0);
  const auto n = count.item<int64_t>();
  if (n == 0) return;
  const auto from_rank_zero = [&](const at::Tensor& whole, int64_t width, at::ScalarType dtype) {
    at::Tensor rows = group_->rank() == 0 && width > 0 ? whole.contiguous() : at::empty({n, width}, dtype);
    at::Tensor bytes = rows.view(at::kByte);
    if (width > 0) group_->broadcast(bytes, 0);
    return rows;
  };
  at::Tensor rows = from_rank_zero(given.rows.defined() ? given.rows.view({n, 1}) : given.rows, 1, at::kLong).view(-1);
  const at::Tensor weight =
      from_rank_zero(given.contents.weight, stored_width(spec_.row_dtype, spec.dim), stored_type(spec_.row_dtype));
  const at::Tensor state =
      from_rank_zero(given.contents.state, state_per_row(spec_.optimizer.kind, spec.dim), at::kFloat);
  ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table);
  if (local < 0) return;
  if (plan_.tables[static_cast<size_t>(table)].sharding != Sharding::kRowWise)
    return pack.write(local, rows, {.weight = own_columns(table, weight), .state = own_columns(table, state)});
  const at::Tensor mine = rows.remainder(plan_.ranks).eq(group_->rank()).nonzero().view(-1);
  pack.write(local, rows.index_select(0, mine).floor_divide(plan_.ranks),
             {.weight = weight.index_select(0, mine), .state = state.index_select(0, mine)});
}

void DistributedTables::write(int64_t table, const TableContents& contents) {
  const int64_t rows = spec_.tables[static_cast<size_t>(table)].rows;
  write_rows(table, {.rows = at::arange(rows, at::kLong), .contents = contents});
}

int64_t DistributedTables::num_changed(int64_t table) const {
  const Sharding sharding = plan_.tables[static_cast<size_t>(table)].sharding;
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table);
  // Ranks that hold columns or replicas of the same rows count them once.
  const bool counts =
      local >= 0 && (group_->rank() == 0 || sharding == Sharding::kRowWise || sharding == Sharding::kTableWise);
  std::vector<int64_t> sent(static_cast<size_t>(plan_.ranks), 0);
  sent[0] = counts ? pack.changed(local).count() : 0;
  if (plan_.ranks == 1) return sent[0];
  const std::vector<int64_t> counted = exchange_sizes(*group_, sent).receive;
  return std::accumulate(counted.begin(), counted.end(), int64_t{0});
}

void DistributedTables::forget_changes() {
  for (const auto& pack : packs_) pack->forget_changes();
}

}  // namespace dovetail::embedding
