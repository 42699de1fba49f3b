#include "dovetail/embedding/ranks/distributed.h"

#include <ATen/ATen.h>

#include <limits>
#include <numeric>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"

namespace dovetail::embedding {

namespace {

/// Returns micro-batch `number`: up to `size` samples of `batch`, fewer or 0 at its end.
Jagged part_of(const Jagged& batch, int64_t size, int64_t number) {
  const int64_t first = number == 0 ? 0 : std::min(number * size, batch.samples);
  return samples_of(batch, first, std::min(size, batch.samples - first));
}

}  // namespace

DistributedTables::DistributedTables(PackSpec spec, TablePlacement plan,
                                     std::shared_ptr<comm::Group> group, comm::Payloads payloads,
                                     const std::optional<TierOptions>& tiers,
                                     const HashedOptions& hashed, Changes changes,
                                     SlotMemory memory)
    : spec_(std::move(spec)),
      plan_(std::move(plan)),
      group_(std::move(group)),
      pack_of_(spec_.tables.size()),
      memory_(memory),
      beside_(memory.device),
      ids_by_gpu_(!memory.device.is_cpu() && group_->gpu_library() == "NCCL") {
  DOVETAIL_CHECK(plan_.ranks == group_->size(), "a plan for {} ranks on {}", plan_.ranks,
                 group_->size());
  for (const int64_t t : spec_.feature_table) {
    const TableSpec& table = spec_.tables[static_cast<size_t>(t)];
    feature_rows_.push_back(table.hashed ? kAnyKey : table.rows);
    columns_ += table.dim;
  }
  std::vector<int64_t> bytes, least;
  std::vector<TableMemory> tables;
  for (const PlacedPack& pack : plan_.packs) {
    bytes.push_back(bytes_on(spec_, plan_, pack, group_->rank()));
    least.push_back(0);
    if (!tiers || bytes.back() == 0) continue;
    for (TableMemory& table :
         least_memory(spec_, plan_, pack, group_->rank(), *tiers, hashed, changes, memory)) {
      least.back() += table.keys + table.rows;
      tables.push_back(std::move(table));
    }
  }
  const int64_t all_bytes = std::accumulate(bytes.begin(), bytes.end(), int64_t{0}),
                left = tiers ? memory_left(tiers->memory_bytes, std::move(tables)) : 0;
  for (size_t i = 0; i < plan_.packs.size(); ++i) {
    for (const int64_t t : plan_.packs[i].tables) pack_of_[static_cast<size_t>(t)] = i;
    std::optional<TierOptions> of_pack = bytes[i] > 0 ? tiers : std::nullopt;
    if (of_pack)
      of_pack->memory_bytes = least[i] + static_cast<int64_t>(static_cast<double>(left) *
                                                              static_cast<double>(bytes[i]) /
                                                              static_cast<double>(all_bytes));
    packs_.push_back(std::make_unique<ShardedPack>(spec_, plan_, plan_.packs[i], group_->rank(),
                                                   payloads, of_pack, hashed, changes, memory,
                                                   /*counted=*/tiers.has_value()));
  }
}

TableStep DistributedTables::start(const Jagged& batch, int64_t micro_batch,
                                   int64_t micro_batches) {
  check_jagged(batch, feature_rows_);
  DOVETAIL_CHECK(micro_batch * micro_batches >= batch.samples,
                 "{} micro-batches of {} for {} samples", micro_batches, micro_batch,
                 batch.samples);
  const TraceSpan span("dovetail::embedding_ids");
  TableStep step;
  step.samples_ = batch.samples;
  step.micro_batch_ = micro_batch;
  step.micro_batches_ = micro_batches;
  step.pooled_.resize(static_cast<size_t>(micro_batches));
  const auto ranks = static_cast<int64_t>(group_->size()),
             count = static_cast<int64_t>(packs_.size());
  std::vector<Message> messages;
  for (const auto& pack : packs_) {
    Jagged own = embedding::features_of(batch, pack->features());
    TableStep::InPack in;
    in.pooled.resize(static_cast<size_t>(micro_batches));
    in.gradients.resize(static_cast<size_t>(micro_batches));
    in.of_ranks.resize(static_cast<size_t>(ranks));
    if (pack->alone()) {
      in.arrived = {own};
    } else {
      if (pack->transfer() != nullptr) {
        in.rows = pack->transfer()->write_ids(own, messages.emplace_back());
        own = in.rows.batch;
      } else {
        messages.push_back(pack->write_ids(own));
      }
      for (int64_t m = 0; m < micro_batches; ++m) in.own.push_back(part_of(own, micro_batch, m));
    }
    step.packs_.push_back(std::move(in));
  }
  if (messages.empty()) return step;
  // One message carries all counts of all packs.
  const at::Tensor counts = at::empty({ranks, count}, at::kLong);
  for (size_t i = 0; i < messages.size(); ++i)
    counts.select(1, static_cast<int64_t>(i)).copy_(at::tensor(messages[i].counts, at::kLong));
  const at::Tensor arriving =
      comm::Exchange(group_, comm::even_splits(ranks, group_->size())).start(counts).wait();
  for (size_t i = 0; i < messages.size(); ++i) {
    const at::Tensor of_pack = arriving.select(1, static_cast<int64_t>(i)).contiguous();
    const auto* data = of_pack.const_data_ptr<int64_t>();
    step.packs_[i].receive.assign(data, data + ranks);
    step.packs_[i].ids = send_ids(messages[i], step.packs_[i].receive);
  }
  return step;
}

comm::Exchange::Pending DistributedTables::send_ids(const Message& message,
                                                    const std::vector<int64_t>& receive) const {
  const comm::Exchange exchange(group_, {message.counts, receive});
  if (!ids_by_gpu_) return exchange.start(message.elements);
  comm::Exchange::Pending sent;
  beside_.run([&] { sent = exchange.start(on(message.elements, device())); });
  return sent;
}

at::Tensor DistributedTables::words_of(comm::Exchange::Pending& ids) const {
  if (!ids_by_gpu_) return ids.wait();
  at::Tensor words;
  beside_.run([&] {
    const at::Tensor there = ids.wait();
    words = at::empty(there.sizes(), at::TensorOptions(at::kInt).pinned_memory(true));
    words.copy_(there, /*non_blocking=*/true);
  });
  beside_.synchronize();
  return words;
}

void DistributedTables::receive(TableStep& step) {
  for (size_t i = 0; i < packs_.size(); ++i) {
    TableStep::InPack& in = step.packs_[i];
    if (!in.arrived.empty() || !in.ids_of_ranks.empty()) continue;
    if (const RowTransfer* transfer = packs_[i]->transfer()) {
      in.ids_of_ranks = transfer->read_ids(words_of(in.ids), in.receive);
    } else {
      in.arrived = packs_[i]->read_ids(words_of(in.ids), in.receive);
    }
  }
}

void DistributedTables::prefetch(TableStep& step) {
  receive(step);
  for (size_t i = 0; i < packs_.size(); ++i) {
    packs_[i]->prefetch(step.packs_[i].ids_here());
    if (packs_[i]->takes_ids_as_they_are()) beside_.run([&] { place(step, i); });
  }
}

void DistributedTables::place(TableStep& step, size_t pack) const {
  const TraceSpan span("dovetail::embedding_place_ids");
  TableStep::InPack& in = step.packs_[pack];
  const at::Device ids_device = packs_[pack]->ids_device();
  if (const RowTransfer* transfer = packs_[pack]->transfer()) {
    for (Jagged& own : in.own) own = on(own, device());
    for (const at::Tensor& ids : transfer->ids_of_tables(in.ids_of_ranks))
      in.ids_of_tables.push_back(on(ids, ids_device));
  } else {
    in.received.resize(static_cast<size_t>(step.micro_batches_));
    for (int64_t m = 0; m < step.micro_batches_; ++m)
      for (const Jagged& batch : in.arrived)
        in.received[static_cast<size_t>(m)].push_back(
            on(part_of(batch, step.micro_batch_, m), ids_device));
  }
  in.placed = true;
}

void DistributedTables::begin(TableStep& step, bool training) {
  receive(step);
  for (size_t i = 0; i < packs_.size(); ++i) {
    TableStep::InPack& in = step.packs_[i];
    packs_[i]->transfer() != nullptr ? packs_[i]->begin(in.ids_of_ranks, training)
                                     : packs_[i]->begin(in.arrived, training);
    in.placed ? lend_ids(in) : place(step, i);
  }
  beside_.join();
}

void DistributedTables::lend_ids(const TableStep::InPack& in) const {
  const auto lend = [this](const std::vector<Jagged>& batches) {
    for (const Jagged& batch : batches)
      for (const at::Tensor& part : {batch.values, batch.offsets, batch.weights})
        beside_.lend(part);
  };
  lend(in.own);
  for (const std::vector<Jagged>& received : in.received) lend(received);
  for (const at::Tensor& ids : in.ids_of_tables) beside_.lend(ids);
}

void DistributedTables::gather(TableStep& step, int64_t micro_batch) {
  const int64_t first =
                    micro_batch == 0 ? 0 : std::min(micro_batch * step.micro_batch_, step.samples_),
                samples = std::min(step.micro_batch_, step.samples_ - first);
  step.pooled_[static_cast<size_t>(micro_batch)] =
      allocate(samples * columns_, device()).view({samples, columns_});
  for (int64_t g = 0; g < plan_.groups; ++g) gather_group(step, micro_batch, g);
}

void DistributedTables::gather_single_rows(TableStep::InPack& in, const ShardedPack& pack) const {
  const RowTransfer& transfer = *pack.transfer();
  const RowTransfer::Gather gather = [&](int64_t table, const at::Tensor& rows) {
    return pack.gather(table, rows);
  };
  if (!pack.exchanges_pooled())
    return transfer.take_rows(in.ids_of_ranks, in.ids_of_tables, gather, in.rows);
  const Message message = transfer.write_rows(in.ids_of_ranks, in.ids_of_tables, gather);
  in.pooled.front() = comm::Exchange(group_, {message.counts, transfer.row_elements(in.rows)})
                          .start(message.elements);
}

void DistributedTables::gather_group(TableStep& step, int64_t micro_batch, int64_t group) {
  const auto m = static_cast<size_t>(micro_batch);
  std::vector<std::pair<size_t, Message>> messages;
  for (size_t i = 0; i < packs_.size(); ++i) {
    if (plan_.packs[i].group != group) continue;
    TableStep::InPack& in = step.packs_[i];
    if (packs_[i]->transfer() != nullptr) {
      if (m == 0) gather_single_rows(in, *packs_[i]);
    } else if (packs_[i]->alone()) {
      packs_[i]->pool_batch(in.received[m].front(), step.pooled_[m]);
    } else if (packs_[i]->exchanges_pooled()) {
      messages.emplace_back(i, packs_[i]->pool_received(in.received[m]));
    } else {
      packs_[i]->pool_replica(in.received[m][static_cast<size_t>(group_->rank())], step.pooled_[m]);
    }
  }
  for (auto& [i, message] : messages)
    step.packs_[i].pooled[m] =
        comm::Exchange(group_, {message.counts, packs_[i]->pooled_counts(step.pooled_[m].size(0))})
            .start(message.elements);
}

at::Tensor DistributedTables::wait(TableStep& step, int64_t micro_batch) {
  const TraceSpan span("dovetail::embedding_stitch");
  const auto m = static_cast<size_t>(micro_batch);
  for (size_t i = 0; i < packs_.size(); ++i) {
    TableStep::InPack& in = step.packs_[i];
    if (const RowTransfer* transfer = packs_[i]->transfer()) {
      if (!in.rows.tables) transfer->receive_rows(in.pooled.front().wait(), in.rows);
      pool_into(*in.rows.tables, in.own[m], step.pooled_[m], Ids::kChecked);
      continue;
    }
    if (!packs_[i]->exchanges_pooled()) continue;
    packs_[i]->add_pooled(in.pooled[m].wait(), in.own[m], step.pooled_[m]);
  }
  return std::move(step.pooled_[m]);
}

void DistributedTables::add_gradient(TableStep& step, int64_t micro_batch,
                                     const at::Tensor& gradient) {
  const TraceSpan span("dovetail::embedding_gradient");
  const auto m = static_cast<size_t>(micro_batch);
  for (size_t i = 0; i < packs_.size(); ++i) {
    TableStep::InPack& in = step.packs_[i];
    if (packs_[i]->alone()) {
      in.of_ranks.front().push_back({.batch = in.received[m].front(), .gradient = gradient});
      continue;
    }
    if (const RowTransfer* transfer = packs_[i]->transfer()) {
      in.own_gradients.push_back({.batch = in.own[m], .gradient = gradient});
      if (micro_batch + 1 < step.micro_batches_) continue;
      const Message message = transfer->write_gradients(in.rows, in.own_gradients);
      in.gradients[m] =
          comm::Exchange(group_, {message.counts, transfer->gradient_elements(in.ids_of_ranks)})
              .start(message.elements);
      continue;
    }
    const Message message = packs_[i]->write_gradient(in.own[m], gradient);
    in.gradients[m] =
        comm::Exchange(group_, {message.counts, packs_[i]->gradient_counts(in.received[m])})
            .start(message.elements);
  }
}

void DistributedTables::update(TableStep& step) {
  for (size_t m = 0; m < static_cast<size_t>(step.micro_batches_); ++m) {
    for (size_t i = 0; i < packs_.size(); ++i) {
      if (packs_[i]->alone() || packs_[i]->transfer() != nullptr) continue;
      TableStep::InPack& in = step.packs_[i];
      std::vector<PooledGradient> gradients =
          packs_[i]->read_gradients(in.gradients[m].value().wait(), in.received[m]);
      for (size_t r = 0; r < gradients.size(); ++r)
        in.of_ranks[r].push_back(std::move(gradients[r]));
    }
  }
  for (size_t i = 0; i < packs_.size(); ++i) {
    TableStep::InPack& in = step.packs_[i];
    if (const RowTransfer* transfer = packs_[i]->transfer()) {
      update_single_rows(packs_[i]->tables(),
                         transfer->read_gradients(in.gradients.back().value().wait(),
                                                  in.ids_of_ranks, in.ids_of_tables));
    } else {
      std::vector<PooledGradient> in_order;
      for (std::vector<PooledGradient>& of_rank : in.of_ranks)
        for (PooledGradient& part : of_rank) in_order.push_back(std::move(part));
      embedding::update(packs_[i]->tables(), in_order, Ids::kChecked);
    }
    packs_[i]->mark_changed(in.ids_here());
  }
  end(step);
}

void DistributedTables::discard(TableStep& step) {
  for (size_t i = 0; i < packs_.size(); ++i)
    if (!packs_[i]->alone())
      for (auto& gradient : step.packs_[i].gradients)
        if (gradient) gradient->wait();
  end(step);
}

void DistributedTables::end(TableStep& step) {
  for (const auto& pack : packs_) pack->end();
  step = TableStep();
}

at::Tensor DistributedTables::lookup(const Jagged& batch) {
  // Use one micro-batch on every rank, whatever its number of samples.
  TableStep step = start(batch, std::numeric_limits<int64_t>::max(), 1);
  begin(step, /*training=*/false);
  gather(step, 0);
  at::Tensor pooled = wait(step, 0);
  end(step);
  return pooled;
}

std::optional<TierCounters> DistributedTables::tier_counters() const {
  std::optional<TierCounters> sum;
  for (const auto& pack : packs_) {
    if (const TieredTables* tiers = pack->tiers()) {
      if (!sum) sum.emplace();
      *sum += tiers->counters();
    }
  }
  return sum;
}

SlotTransfers DistributedTables::row_transfers() const {
  SlotTransfers sum;
  for (const auto& pack : packs_) {
    if (pack->tiers() != nullptr) sum += pack->tiers()->transfers();
    if (pack->hashed() != nullptr && pack->tiers() == nullptr) sum += pack->hashed()->transfers();
  }
  return sum;
}

void DistributedTables::set_lr(double lr) {
  for (size_t i = 0; i < packs_.size(); ++i)
    packs_[i]->tables().set_lr(rate_of(spec_, plan_.packs[i].tables.front(), lr));
}

void DistributedTables::set_steps(int64_t updates, int64_t steps) {
  for (const auto& pack : packs_) {
    pack->tables().set_steps(updates);
    if (pack->hashed() != nullptr) pack->hashed()->set_steps(steps);
  }
}

}  // namespace dovetail::embedding
