#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "dovetail/base/error.h"
#include "dovetail/embedding/ranks/distributed.h"

namespace dovetail::embedding {

bool DistributedTables::cut_by_rows(int64_t table) const {
  return plan_.ranks > 1 && plan_.tables[static_cast<size_t>(table)].sharding == Sharding::kRowWise;
}

bool DistributedTables::cut_by_columns(int64_t table) const {
  return plan_.ranks > 1 &&
         plan_.tables[static_cast<size_t>(table)].sharding == Sharding::kColumnWise;
}

int64_t DistributedTables::saving_rank(int64_t table) const {
  const PlacedTable& planned = plan_.tables[static_cast<size_t>(table)];
  return planned.sharding == Sharding::kTableWise ? planned.rank : table % plan_.ranks;
}

at::Tensor DistributedTables::local_rows(int64_t table, int64_t first, int64_t count,
                                         RowSet which) const {
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table), rank = group_->rank(), ranks = plan_.ranks;
  if (local < 0) return at::empty({0}, at::kLong);
  int64_t begin = first, end = first + count;
  if (cut_by_rows(table)) {
    begin = (begin + ranks - 1 - rank) / ranks;
    end = (end + ranks - 1 - rank) / ranks;
  }
  return which == RowSet::kAll ? at::arange(begin, end, at::kLong)
                               : pack.marked(local, which).within(begin, end);
}

at::Tensor DistributedTables::whole_numbers(int64_t table, const at::Tensor& local) const {
  return cut_by_rows(table) ? local * plan_.ranks + group_->rank() : local;
}

std::vector<int64_t> DistributedTables::widths_of(int64_t table, int64_t width) const {
  std::vector<int64_t> widths(static_cast<size_t>(plan_.ranks), width);
  if (plan_.tables[static_cast<size_t>(table)].sharding != Sharding::kColumnWise) return widths;
  for (int64_t r = 0; r < plan_.ranks; ++r)
    widths[static_cast<size_t>(r)] = width / spec_.tables[static_cast<size_t>(table)].dim *
                                     local_table(spec_, plan_, table, r).dim;
  return widths;
}

std::vector<int64_t> DistributedTables::counts_of_ranks(int64_t own, int64_t to) const {
  std::vector<int64_t> send(static_cast<size_t>(plan_.ranks), 0);
  send[static_cast<size_t>(to)] = own;
  return plan_.ranks == 1 ? send : comm::exchange_sizes(*group_, send).receive;
}

at::Tensor DistributedTables::to_rank(int64_t to, const at::Tensor& own,
                                      const std::vector<int64_t>& counts) const {
  if (plan_.ranks == 1) return own;
  comm::Splits splits{std::vector<int64_t>(counts.size(), 0), counts};
  splits.send[static_cast<size_t>(to)] = own.size(0);
  const at::Tensor all = comm::Exchange(group_, splits).start(own.contiguous()).wait();
  return group_->rank() == to ? all : at::Tensor();
}

int64_t DistributedTables::rows_of_rank_zero(const at::Tensor& own) const {
  at::Tensor rows =
      at::full({1}, group_->rank() == 0 && own.defined() ? own.size(0) : 0, at::kLong);
  group_->broadcast(rows, 0);
  return rows.item<int64_t>();
}

at::Tensor DistributedTables::from_rank_zero(const at::Tensor& own, at::IntArrayRef shape,
                                             at::ScalarType dtype) const {
  const bool any = std::ranges::all_of(shape, [](int64_t size) { return size > 0; });
  at::Tensor all = group_->rank() == 0 && any ? own.contiguous() : at::empty(shape, dtype);
  at::Tensor bytes = all.view(at::kByte);
  if (any) group_->broadcast(bytes, 0);
  return all;
}

at::Tensor DistributedTables::put_together(int64_t table, const at::Tensor& own,
                                           const std::vector<int64_t>& counts,
                                           const std::vector<int64_t>& widths,
                                           const at::Tensor& order, int64_t to) const {
  if (plan_.ranks == 1) return own;
  std::vector<int64_t> sizes(counts.size());
  std::ranges::transform(counts, widths, sizes.begin(), std::multiplies<>());
  const at::Tensor all = to_rank(to, own.contiguous().view(-1), sizes);
  if (!all.defined()) return {};
  if (plan_.tables[static_cast<size_t>(table)].sharding != Sharding::kColumnWise) {
    const at::Tensor rows = all.view({-1, widths.front()});
    return order.defined() ? rows.index_select(0, order) : rows;
  }
  std::vector<at::Tensor> columns = all.split_with_sizes(sizes);
  for (size_t r = 0; r < columns.size(); ++r) {
    const int64_t dim = local_table(spec_, plan_, table, static_cast<int64_t>(r)).dim;
    columns[r] = columns[r].view({counts[r], widths[r] / dim, dim});
  }
  return at::cat(columns, 2).flatten(1);
}

TableRows DistributedTables::read_rows(int64_t table, int64_t first, int64_t count, RowSet which,
                                       int64_t to) const {
  const TableSpec& spec = spec_.tables[static_cast<size_t>(table)];
  const Sharding sharding = plan_.tables[static_cast<size_t>(table)].sharding;
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table);
  const bool sends = sharding != Sharding::kReplicated || group_->rank() == to;
  const at::Tensor own = sends ? local_rows(table, first, count, which) : at::empty({0}, at::kLong);
  const std::vector<int64_t> counts = counts_of_ranks(own.numel(), to);
  TableRows found{.rows = to_rank(to, whole_numbers(table, own), counts), .contents = {}};
  at::Tensor order;
  if (group_->rank() == to) {
    if (sharding == Sharding::kColumnWise)
      found.rows = found.rows.narrow(0, 0, counts.front());  // each rank has all rows
    if (cut_by_rows(table)) std::tie(found.rows, order) = found.rows.sort();
  }
  const TableContents contents = own.numel() > 0 ? pack.read(local, own) : TableContents();
  const auto whole = [&](const at::Tensor& part, int64_t width, at::ScalarType dtype) {
    const std::vector<int64_t> widths = widths_of(table, width);
    const at::Tensor mine =
        part.defined() ? part : at::empty({0, widths[static_cast<size_t>(group_->rank())]}, dtype);
    return put_together(table, mine, counts, widths, order, to);
  };
  found.contents.weight =
      whole(contents.weight, stored_width(spec_.row_dtype, spec.dim), stored_type(spec_.row_dtype));
  const int64_t state = state_per_row(spec_, table);
  if (state > 0) found.contents.state = whole(contents.state, state, at::kFloat);
  return found;
}

TableRows DistributedTables::own_rows(int64_t table, int64_t first, int64_t count,
                                      RowSet which) const {
  DOVETAIL_CHECK(!cut_by_columns(table), "no rank has whole rows of table {}", table);
  const at::Tensor local = local_rows(table, first, count, which);
  TableRows found{.rows = whole_numbers(table, local), .contents = {}};
  if (local.numel() > 0)
    found.contents = pack_of(table).read(pack_of(table).local_table(table), local);
  if (state_per_row(spec_, table) == 0) found.contents.state = at::Tensor();  // as read_rows
  return found;
}

int64_t DistributedTables::num_own_rows(int64_t table, RowSet which) const {
  DOVETAIL_CHECK(which != RowSet::kAll, "all rows of table {} have no marks to count", table);
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table);
  return local < 0 ? 0 : pack.marked(local, which).count();
}

TableContents DistributedTables::read(int64_t table) const {
  return read_rows(table, 0, spec_.tables[static_cast<size_t>(table)].rows, RowSet::kAll).contents;
}

at::Tensor DistributedTables::own_columns(int64_t table, const at::Tensor& rows) const {
  if (plan_.tables[static_cast<size_t>(table)].sharding != Sharding::kColumnWise ||
      rows.size(1) == 0)
    return rows;
  // A column of the table is one column of weights, and two of Adam's state.
  const TableSpec part = local_table(spec_, plan_, table, group_->rank());
  return rows.view({rows.size(0), -1, spec_.tables[static_cast<size_t>(table)].dim})
      .narrow(2, part.slice.first_column, part.dim)
      .flatten(1);
}

void DistributedTables::write_rows(int64_t table, const TableRows& given) {
  const TableSpec& spec = spec_.tables[static_cast<size_t>(table)];
  const int64_t n = rows_of_rank_zero(given.rows);
  if (n == 0) return;
  const at::Tensor rows = from_rank_zero(given.rows, {n}, at::kLong);
  const at::Tensor weight =
      from_rank_zero(given.contents.weight, {n, stored_width(spec_.row_dtype, spec.dim)},
                     stored_type(spec_.row_dtype));
  const at::Tensor state =
      from_rank_zero(given.contents.state, {n, state_per_row(spec_, table)}, at::kFloat);
  ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table);
  if (local < 0) return;
  if (plan_.tables[static_cast<size_t>(table)].sharding != Sharding::kRowWise)
    return pack.write(local, rows,
                      {.weight = own_columns(table, weight), .state = own_columns(table, state)});
  const at::Tensor mine = rows.remainder(plan_.ranks).eq(group_->rank()).nonzero().view(-1);
  pack.write(local, rows.index_select(0, mine).floor_divide(plan_.ranks),
             {.weight = weight.index_select(0, mine), .state = state.index_select(0, mine)});
}

void DistributedTables::write(int64_t table, const TableContents& contents) {
  const int64_t rows = spec_.tables[static_cast<size_t>(table)].rows;
  write_rows(table, {.rows = at::arange(rows, at::kLong), .contents = contents});
}

int64_t DistributedTables::num_rows(int64_t table, RowSet which) const {
  if (which == RowSet::kAll) return spec_.tables[static_cast<size_t>(table)].rows;
  const Sharding sharding = plan_.tables[static_cast<size_t>(table)].sharding;
  // Ranks with columns or replicas of the same rows count them once.
  const bool counts =
      group_->rank() == 0 || sharding == Sharding::kRowWise || sharding == Sharding::kTableWise;
  const std::vector<int64_t> counted = counts_of_ranks(counts ? num_own_rows(table, which) : 0);
  at::Tensor sum =
      at::full({1}, std::accumulate(counted.begin(), counted.end(), int64_t{0}), at::kLong);
  group_->broadcast(sum, 0);
  return sum.item<int64_t>();
}

void DistributedTables::forget_changes() {
  for (const auto& pack : packs_) pack->forget_changes();
}

}  // namespace dovetail::embedding
