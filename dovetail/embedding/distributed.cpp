#include "dovetail/embedding/distributed.h"

#include <ATen/ATen.h>

#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"

namespace dovetail::embedding {

namespace {

/// Rows (rows, width) of every rank, in the whole table's order.
at::Tensor interleave(const std::vector<at::Tensor>& parts, int64_t rows) {
  const at::Tensor whole = at::empty({rows, parts.front().size(1)}, parts.front().options());
  const auto ranks = static_cast<int64_t>(parts.size());
  for (int64_t r = 0; r < std::min(ranks, rows); ++r) {
    const at::Tensor to = whole.slice(0, r, std::nullopt, ranks);
    to.copy_(parts[static_cast<size_t>(r)].narrow(0, 0, to.size(0)));
  }
  return whole;
}

/// Columns [first, first + width) of each of the `dim` columns' numbers in a row: one for a weight, two for Adam's
/// state.
at::Tensor column_range(const at::Tensor& whole, int64_t dim, int64_t first, int64_t width) {
  return whole.view({whole.size(0), -1, dim}).narrow(2, first, width);
}

}  // namespace

DistributedTables::DistributedTables(PackSpec spec, EmbeddingPlan plan, std::shared_ptr<Group> group, Payloads payloads)
    : spec_(std::move(spec)), plan_(std::move(plan)), group_(std::move(group)), pack_of_(spec_.tables.size()) {
  DOVETAIL_CHECK(plan_.ranks == group_->size(), "a plan for {} ranks on {}", plan_.ranks, group_->size());
  for (const int64_t t : spec_.feature_table) {
    const TableSpec& table = spec_.tables[static_cast<size_t>(t)];
    feature_rows_.push_back(table.rows);
    columns_ += table.dim;
  }
  for (const PlannedPack& pack : plan_.packs) {
    for (const int64_t t : pack.tables) pack_of_[static_cast<size_t>(t)] = packs_.size();
    packs_.emplace_back(spec_, plan_, pack, group_->rank(), payloads);
  }
  discard();
}

Lookup DistributedTables::start(const Jagged& batch) {
  check_jagged(batch, feature_rows_);
  const TraceSpan span("dovetail::embedding_ids");
  Lookup lookup;
  lookup.samples_ = batch.samples;
  for (const ShardedPack& pack : packs_)
    lookup.packs_.push_back({.own = embedding::features_of(batch, pack.features())});
  if (plan_.ranks == 1 || packs_.empty()) return lookup;
  std::vector<Message> messages;
  for (size_t i = 0; i < packs_.size(); ++i) messages.push_back(packs_[i].write_ids(lookup.packs_[i].own));
  // All counts of all packs in one message.
  const auto ranks = static_cast<int64_t>(group_->size()), count = static_cast<int64_t>(packs_.size());
  const at::Tensor counts = at::empty({ranks, count}, at::kLong);
  for (size_t i = 0; i < messages.size(); ++i)
    counts.select(1, static_cast<int64_t>(i)).copy_(at::tensor(messages[i].counts, at::kLong));
  const at::Tensor arriving = Exchange(group_, even_splits(ranks, group_->size())).start(counts).wait();
  for (size_t i = 0; i < messages.size(); ++i) {
    const at::Tensor of_pack = arriving.select(1, static_cast<int64_t>(i)).contiguous();
    const auto* data = of_pack.const_data_ptr<int64_t>();
    lookup.packs_[i].receive.assign(data, data + ranks);
    lookup.packs_[i].ids = Exchange(group_, {messages[i].counts, lookup.packs_[i].receive}).start(messages[i].elements);
  }
  return lookup;
}

void DistributedTables::gather(Lookup& lookup) {
  lookup.y_ = allocate(lookup.samples_ * columns_).view({lookup.samples_, columns_});
  for (int64_t g = 0; g < plan_.groups; ++g) gather_group(lookup, g);
}

void DistributedTables::gather_group(Lookup& lookup, int64_t group) {
  std::vector<std::pair<size_t, Message>> messages;
  for (size_t i = 0; i < packs_.size(); ++i) {
    if (plan_.packs[i].group != group) continue;
    Lookup::InPack& in = lookup.packs_[i];
    if (packs_[i].alone()) {
      pool_into(packs_[i].tables(), in.own, lookup.y_);
      continue;
    }
    in.received = packs_[i].read_ids(in.ids.wait(), in.receive);
    if (packs_[i].exchanges_pooled()) {
      messages.emplace_back(i, packs_[i].pool_received(in.received));
    } else {
      packs_[i].pool_replica(in.own, lookup.y_);
    }
  }
  for (auto& [i, message] : messages)
    lookup.packs_[i].pooled =
        Exchange(group_, {message.counts, packs_[i].pooled_counts(lookup.samples_)}).start(message.elements);
}

at::Tensor DistributedTables::wait(Lookup& lookup) {
  const TraceSpan span("dovetail::embedding_stitch");
  for (size_t i = 0; i < packs_.size(); ++i) {
    Lookup::InPack& in = lookup.packs_[i];
    if (packs_[i].exchanges_pooled()) packs_[i].add_pooled(in.pooled.wait(), in.own, lookup.y_);
  }
  return std::move(lookup.y_);
}

at::Tensor DistributedTables::lookup(const Jagged& batch) {
  Lookup lookup = start(batch);
  gather(lookup);
  return wait(lookup);
}

void DistributedTables::add_gradient(Lookup lookup, const at::Tensor& gradient) {
  const TraceSpan span("dovetail::embedding_gradient");
  for (size_t i = 0; i < packs_.size(); ++i) {
    Lookup::InPack& in = lookup.packs_[i];
    if (packs_[i].alone()) {
      parts_[i].front().push_back({.batch = std::move(in.own), .gradient = gradient});
      continue;
    }
    const Message message = packs_[i].write_gradient(in.own, gradient);
    const Exchange exchange(group_, {message.counts, packs_[i].gradient_counts(in.received)});
    pending_.push_back({.pack = i, .received = std::move(in.received), .elements = exchange.start(message.elements)});
  }
}

void DistributedTables::collect() {
  for (PendingGradient& pending : pending_) {
    std::vector<PooledGradient> of_ranks =
        packs_[pending.pack].read_gradients(pending.elements.wait(), pending.received);
    for (size_t r = 0; r < of_ranks.size(); ++r) parts_[pending.pack][r].push_back(std::move(of_ranks[r]));
  }
  pending_.clear();
}

void DistributedTables::update() {
  collect();
  for (size_t i = 0; i < packs_.size(); ++i) {
    std::vector<PooledGradient> in_order;
    for (std::vector<PooledGradient>& of_rank : parts_[i])
      for (PooledGradient& part : of_rank) in_order.push_back(std::move(part));
    embedding::update(packs_[i].tables(), in_order);
  }
  ++steps_;
  discard();
}

void DistributedTables::discard() {
  for (PendingGradient& pending : pending_) pending.elements.wait();
  pending_.clear();
  parts_.assign(packs_.size(), std::vector<std::vector<PooledGradient>>(static_cast<size_t>(group_->size())));
}

void DistributedTables::set_lr(double lr) {
  for (ShardedPack& pack : packs_) pack.tables().set_lr(lr);
}

void DistributedTables::set_steps(int64_t steps) {
  steps_ = steps;
  for (ShardedPack& pack : packs_) pack.tables().set_steps(steps);
}

at::Tensor DistributedTables::read_rows(int64_t table, const at::Tensor& own, int64_t width) const {
  const Sharding sharding = plan_.tables[static_cast<size_t>(table)].sharding;
  const TableSpec& whole = spec_.tables[static_cast<size_t>(table)];
  if (plan_.ranks == 1 || sharding == Sharding::kReplicated) return group_->rank() == 0 ? own : at::Tensor();
  std::vector<int64_t> rows, widths;
  Splits splits{std::vector<int64_t>(static_cast<size_t>(plan_.ranks), 0), {}};
  for (int64_t r = 0; r < plan_.ranks; ++r) {
    const TableSpec part = local_table(spec_, plan_, table, r);
    const bool holds = sharding != Sharding::kTableWise || plan_.tables[static_cast<size_t>(table)].rank == r;
    rows.push_back(holds ? part.rows : 0);
    widths.push_back(sharding == Sharding::kColumnWise ? width / whole.dim * part.dim : width);
    splits.receive.push_back(group_->rank() == 0 ? rows.back() * widths.back() : 0);
  }
  const auto rank = static_cast<size_t>(group_->rank());
  splits.send[0] = rows[rank] * widths[rank];
  const at::Tensor sent =
      rows[rank] > 0 ? own.narrow(0, 0, rows[rank]).contiguous().view(-1) : at::empty({0}, at::kFloat);
  const at::Tensor all = Exchange(group_, splits).start(sent).wait();
  if (rank != 0) return {};
  std::vector<at::Tensor> parts = all.split_with_sizes(splits.receive);
  for (size_t r = 0; r < parts.size(); ++r) parts[r] = parts[r].view({rows[r], widths[r]});
  if (sharding == Sharding::kRowWise) return interleave(parts, whole.rows);
  if (sharding == Sharding::kTableWise) return at::cat(parts);
  std::vector<at::Tensor> columns;
  for (size_t r = 0; r < parts.size(); ++r) columns.push_back(parts[r].view({whole.rows, width / whole.dim, -1}));
  return at::cat(columns, 2).view({whole.rows, width});
}

TableContents DistributedTables::read(int64_t table) const {
  const ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table), dim = spec_.tables[static_cast<size_t>(table)].dim;
  TableContents contents{.weight = read_rows(table, local < 0 ? at::Tensor() : pack.tables().weight(local), dim)};
  const int64_t state = state_per_row(spec_.optimizer.kind, dim);
  const at::Tensor own_state = local < 0 ? at::Tensor() : pack.tables().packed_state(local);
  if (state > 0) contents.state = read_rows(table, own_state, state);
  return contents;
}

at::Tensor DistributedTables::own_rows(int64_t table, const at::Tensor& whole) const {
  const PlannedTable& planned = plan_.tables[static_cast<size_t>(table)];
  const int64_t rank = group_->rank(), dim = spec_.tables[static_cast<size_t>(table)].dim;
  if (planned.sharding == Sharding::kRowWise) return whole.slice(0, rank, std::nullopt, plan_.ranks);
  if (planned.sharding != Sharding::kColumnWise) return whole;
  const TableSpec part = local_table(spec_, plan_, table, rank);
  return column_range(whole, dim, part.slice.first_column, part.dim).reshape({whole.size(0), -1});
}

void DistributedTables::write(int64_t table, const TableContents& contents) {
  const TableSpec& spec = spec_.tables[static_cast<size_t>(table)];
  ShardedPack& pack = pack_of(table);
  const int64_t local = pack.local_table(table);
  const auto distribute = [&](const at::Tensor& whole, int64_t width, const auto& own) {
    if (width == 0) return;
    at::Tensor rows = group_->rank() == 0 ? whole.contiguous() : at::empty({spec.rows, width}, at::kFloat);
    group_->broadcast(rows, 0);
    if (local < 0) return;
    const at::Tensor part = own_rows(table, rows);
    if (part.size(0) > 0) own().copy_(part);
  };
  distribute(contents.weight, spec.dim, [&] { return pack.tables().weight(local); });
  distribute(contents.state, state_per_row(spec_.optimizer.kind, spec.dim),
             [&] { return pack.tables().packed_state(local); });
}

}  // namespace dovetail::embedding
