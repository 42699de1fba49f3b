#include "dovetail/embedding/ranks/sharded_pack.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::embedding {

namespace {

/// Words before the lengths in a message of ids: the number of samples, and 1 if there are weights.
constexpr int64_t kHeader = 2;

/// Returns the spec of the rank's tables. With one rank, features write directly into the whole
/// collection's output.
PackSpec rank_spec(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                   int64_t rank) {
  std::vector<int64_t> features;
  PackSpec local = local_spec(spec, plan, pack, rank, features);
  if (plan.ranks > 1) return local;
  const std::vector<int64_t> columns = whole_columns(spec);
  for (const int64_t f : features) local.feature_columns.push_back(columns[static_cast<size_t>(f)]);
  local.columns = columns.back();
  return local;
}

/// Returns the batch with each id as often as it occurs.
Jagged repeated(const Jagged& batch, const at::Tensor& occurrences) {
  Jagged found = batch;
  found.values = at::repeat_interleave(batch.values, occurrences);
  const at::Tensor ends = at::cat({at::zeros({1}, at::kLong), at::cumsum(occurrences, 0)});
  found.offsets = ends.index_select(0, batch.offsets);
  return found;
}

/// Returns the options for one rank. With row-wise sharding, it has 1/n of the keys and gets 1/n of
/// each limit.
HashedOptions part_of(HashedOptions options, Sharding sharding, int64_t ranks) {
  if (sharding != Sharding::kRowWise) return options;
  options.max_candidates = (options.max_candidates + ranks - 1) / ranks;
  options.keep_rows = (options.keep_rows + ranks - 1) / ranks;
  return options;
}

}  // namespace

std::vector<TableMemory> least_memory(const PackSpec& spec, const TablePlacement& plan,
                                      const PlacedPack& pack, int64_t rank,
                                      const TierOptions& tiers, const HashedOptions& hashed,
                                      Changes changes, SlotMemory memory) {
  std::vector<int64_t> features;
  const PackSpec own = local_spec(spec, plan, pack, rank, features);
  if (pack.hashed)
    return HashedTables::least_memory(own, part_of(hashed, pack.sharding, plan.ranks), changes,
                                      tiers, memory.apart);
  std::vector<TableMemory> least = TieredTables::least_memory(own, tiers, memory.apart);
  for (size_t t = 0; !memory.apart && t < least.size(); ++t)
    least[t].rows +=
        ChangedRows::bytes_for(own.tables[t].rows) * (changes == Changes::kTracked ? 2 : 1);
  return least;
}

ShardedPack::ShardedPack(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                         int64_t rank, const comm::Payloads& payloads,
                         const std::optional<TierOptions>& tiers, const HashedOptions& hashed,
                         Changes changes, SlotMemory memory, bool counted)
    : sharding_(pack.sharding),
      ranks_(plan.ranks),
      rank_(rank),
      payloads_(payloads),
      features_(embedding::features_of(spec, pack)) {
  const PackSpec own = rank_spec(spec, plan, pack, rank);
  int64_t bytes_of_marks = 0;
  const auto mark_in = [&](std::vector<ChangedRows>& marks) {
    for (const TableSpec& table : own.tables) {
      marks.emplace_back(table.rows);
      bytes_of_marks += ChangedRows::bytes_for(table.rows);
    }
  };
  if (!pack.hashed) mark_in(updated_);
  if (changes == Changes::kTracked && !pack.hashed) mark_in(changed_);
  if (pack.hashed) {
    id_words_ = 2;
    hashed_.emplace(own, part_of(hashed, sharding_, ranks_), changes, tiers, memory);
  } else if (tiers) {
    TierOptions rest = *tiers;
    if (!memory.apart) rest.memory_bytes -= bytes_of_marks;
    tiers_.emplace(own, rest, KeyOfRow(), memory);
  } else {
    packed_.emplace(own, PackedTables::Initial::kDrawn, memory.device);
  }
  const std::vector<int64_t> columns = whole_columns(spec);
  for (const int64_t f : features_) {
    const int64_t t = spec.feature_table[static_cast<size_t>(f)];
    const TableSpec& table = spec.tables[static_cast<size_t>(t)];
    feature_rank_.push_back(plan.tables[static_cast<size_t>(t)].rank);
    feature_column_.push_back(columns[static_cast<size_t>(f)]);
    feature_dim_.push_back(table.dim);
    mean_by_samples_.push_back(sharding_ == Sharding::kRowWise && table.pooling == Pooling::kMean);
  }
  for (const int64_t t : pack.tables)
    if (sharding_ != Sharding::kTableWise || plan.tables[static_cast<size_t>(t)].rank == rank)
      whole_tables_.push_back(t);
  if (alone()) return;
  if (pack.transfer == Transfer::kRows)
    transfer_.emplace(spec, plan, pack, rank, payloads, pack.hashed || counted, memory.device);
  for (int64_t r = 0; r < ranks_; ++r) parts_.push_back(make_part(spec, plan, pack, r));
}

int64_t ShardedPack::local_table(int64_t table) const {
  const auto found = std::ranges::find(whole_tables_, table);
  return found == whole_tables_.end() ? -1 : found - whole_tables_.begin();
}

TableContents ShardedPack::read(int64_t local, const at::Tensor& rows) const {
  if (tiers_) {
    auto [weight, state] = tiers_->rows(local, rows);
    return {.weight = std::move(weight), .state = std::move(state)};
  }
  const at::Tensor weight = packed_->stored(local), state = packed_->packed_state(local);
  const int64_t count = rows.numel();
  if (count == 0)
    return {.weight = weight.narrow(0, 0, 0).cpu(), .state = state.narrow(0, 0, 0).cpu()};
  const auto* row = rows.const_data_ptr<int64_t>();
  if (row[count - 1] - row[0] + 1 == count)
    return {.weight = weight.narrow(0, row[0], count).cpu(),
            .state = state.narrow(0, row[0], count).cpu()};
  const at::Tensor there = rows.to(weight.device());
  return {.weight = weight.index_select(0, there).cpu(),
          .state = state.index_select(0, there).cpu()};
}

void ShardedPack::write(int64_t local, const at::Tensor& rows, const TableContents& contents) {
  ChangedRows& updated = updated_.at(static_cast<size_t>(local));
  for (int64_t i = 0; i < rows.numel(); ++i) updated.mark(rows.const_data_ptr<int64_t>()[i]);
  if (!tiers_) {
    const at::Tensor weight = packed_->stored(local), state = packed_->packed_state(local);
    const at::Tensor there = rows.to(weight.device());
    weight.index_copy_(0, there, contents.weight.to(weight.device()));
    state.index_copy_(0, there, contents.state.to(weight.device()));
    return;
  }
  const int64_t count = rows.numel();
  const auto* row = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0, end = 0; i < count; i = end) {
    for (end = i + 1; end < count && row[end] == row[end - 1] + 1;) ++end;
    tiers_->set_rows(local, row[i], contents.weight.narrow(0, i, end - i),
                     contents.state.narrow(0, i, end - i));
  }
}

void ShardedPack::mark_changed(const std::vector<Jagged>& batches) {
  parallel_pieces(std::ssize(updated_), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      ChangedRows& updated = updated_[static_cast<size_t>(t)];
      ChangedRows* changed = changed_.empty() ? nullptr : &changed_[static_cast<size_t>(t)];
      for (const Jagged& batch : batches) {
        const auto *ids = batch.values.const_data_ptr<int64_t>(),
                   *offsets = batch.offsets.const_data_ptr<int64_t>();
        for (const int64_t f : tables().features_of(t))
          for (int64_t i = offsets[f * batch.samples]; i < offsets[(f + 1) * batch.samples]; ++i) {
            const int64_t row = tiers_ ? tiers_->row_in(t, ids[i]) : ids[i];
            updated.mark(row);
            if (changed != nullptr) changed->mark(row);
          }
      }
    }
  });
}

void ShardedPack::forget_changes() {
  for (ChangedRows& changed : changed_) changed.clear();
  if (hashed_) hashed_->forget_changes();
}

void ShardedPack::begin(std::vector<Jagged>& received, bool training) {
  training_ = training;
  if (!training || (!tiers_ && !hashed_)) return;
  const Jagged ids = side_by_side(received);
  const Jagged slots = tiers_ ? tiers_->begin(ids) : hashed_->begin(ids);
  int64_t first = 0;
  for (Jagged& batch : received) {
    batch = samples_of(slots, first, batch.samples);
    first += batch.samples;
  }
}

void ShardedPack::begin(std::vector<RowTransfer::Received>& received, bool training) {
  std::vector<Jagged> batches;
  batches.reserve(received.size());
  for (const RowTransfer::Received& from : received)
    batches.push_back(training && from.occurrences.defined() ? repeated(from.ids, from.occurrences)
                                                             : from.ids);
  begin(batches, training);
  for (size_t r = 0; r < received.size(); ++r) {
    RowTransfer::Received& from = received[r];
    from.ids.values = batches[r].values;
    if (training && from.occurrences.defined())
      from.ids.values = batches[r].values.index_select(
          0, at::cumsum(from.occurrences, 0) - from.occurrences);  // first copy of each id
  }
}

at::Tensor ShardedPack::gather(int64_t local, const at::Tensor& ids) const {
  if (tiers_ && !training_) return on(tiers_->look_up(local, ids), tables().device());
  if (hashed_ && !training_) return on(hashed_->look_up(local, ids), tables().device());
  return gather_rows(tables(), local, ids);
}

void ShardedPack::prefetch(const std::vector<Jagged>& received) const {
  if (tiers_) tiers_->prefetch(side_by_side(received));
  if (hashed_) hashed_->prefetch(side_by_side(received));
}

void ShardedPack::pool_batch(const Jagged& batch, const at::Tensor& y) const {
  if (tiers_ && !training_) return tiers_->pool_into(batch, y);
  if (hashed_ && !training_) return hashed_->pool_into(batch, y);
  pool_into(tables(), batch, y, Ids::kChecked);
}

void ShardedPack::end() {
  if (tiers_ && training_) tiers_->end();
  if (hashed_ && training_) hashed_->end();
}

ShardedPack::Part ShardedPack::make_part(const PackSpec& spec, const TablePlacement& plan,
                                         const PlacedPack& pack, int64_t rank) const {
  Part part;
  std::vector<int64_t> numbers;
  const PackSpec local = local_spec(spec, plan, pack, rank, numbers);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t f = std::ranges::lower_bound(features_, numbers[i]) - features_.begin();
    const TableSpec& table = local.tables[static_cast<size_t>(local.feature_table[i])];
    const int64_t whole = feature_column_[static_cast<size_t>(f)] + table.slice.first_column;
    const bool follows =
        !part.runs.empty() && part.runs.back().whole + part.runs.back().width == whole;
    if (follows) {
      part.runs.back().width += table.dim;
    } else {
      part.runs.push_back({.whole = whole, .own = part.columns, .width = table.dim});
    }
    part.features.push_back(f);
    part.columns += table.dim;
  }
  return part;
}

template <class Emit>
void ShardedPack::each_destination(int64_t feature, int64_t id, const Emit& emit) const {
  switch (sharding_) {
    case Sharding::kRowWise: {
      const auto key = static_cast<uint64_t>(id), ranks = static_cast<uint64_t>(ranks_);
      emit(static_cast<int64_t>(key % ranks), hashed_ ? id : static_cast<int64_t>(key / ranks));
      return;
    }
    case Sharding::kTableWise:
      emit(feature_rank_[static_cast<size_t>(feature)], id);
      return;
    case Sharding::kColumnWise:
    case Sharding::kReplicated:
      for (int64_t r = 0; r < ranks_; ++r) emit(r, id);
  }
}

Message ShardedPack::write_ids(const Jagged& batch) const {
  const auto ranks = static_cast<size_t>(ranks_);
  const int64_t* values = batch.values.const_data_ptr<int64_t>();
  const int64_t* offsets = batch.offsets.const_data_ptr<int64_t>();
  // For each feature and rank. ids_at: number of ids, then the number of the next id among the
  // rank's ids. lengths_at: first bag length in the message.
  std::vector<std::vector<int64_t>> ids_at(features_.size(), std::vector<int64_t>(ranks, 0)),
      lengths_at = ids_at;
  parallel_pieces(batch.features, 1, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f)
      for (int64_t i = offsets[f * batch.samples]; i < offsets[(f + 1) * batch.samples]; ++i)
        each_destination(f, values[i], [&](int64_t r, int64_t) { ++ids_at[size_t(f)][size_t(r)]; });
  });
  Message message;
  int64_t next = 0;
  std::vector<int64_t> headers, ids_begin, ids_of_rank;
  for (size_t r = 0; r < ranks; ++r) {
    const int64_t begin = next;
    int64_t ids = 0;
    headers.push_back(begin);
    next += kHeader;
    for (const int64_t f : parts_[r].features) {
      lengths_at[size_t(f)][r] = next;
      next += batch.samples;
    }
    ids_begin.push_back(next);
    for (const int64_t f : parts_[r].features) {
      const int64_t count = std::exchange(ids_at[size_t(f)][r], ids);
      ids += count;
    }
    ids_of_rank.push_back(ids);
    next += id_words_ * ids;
    if (batch.weights.defined()) next += ids;
    message.counts.push_back(next - begin);
  }
  message.elements = at::zeros({next}, at::kInt);
  auto* words = message.elements.mutable_data_ptr<int32_t>();
  for (size_t r = 0; r < ranks; ++r) {
    words[headers[r]] = static_cast<int32_t>(batch.samples);
    words[headers[r] + 1] = batch.weights.defined() ? 1 : 0;
  }
  const float* weights = ops::data_or_null(batch.weights);
  parallel_pieces(batch.features, 1, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      for (int64_t b = 0; b < batch.samples; ++b) {
        for (int64_t i = offsets[f * batch.samples + b]; i < offsets[f * batch.samples + b + 1];
             ++i) {
          each_destination(f, values[i], [&](int64_t r, int64_t row) {
            ++words[lengths_at[size_t(f)][size_t(r)] + b];
            const int64_t number = ids_at[size_t(f)][size_t(r)]++;
            int32_t* ids = words + ids_begin[size_t(r)];
            write_id(row, id_words_, ids + id_words_ * number);
            if (weights)
              ids[id_words_ * ids_of_rank[size_t(r)] + number] = std::bit_cast<int32_t>(weights[i]);
          });
        }
      }
    }
  });
  return message;
}

std::vector<Jagged> ShardedPack::read_ids(const at::Tensor& words,
                                          const std::vector<int64_t>& counts) const {
  std::vector<Jagged> received;
  const int32_t* next = words.const_data_ptr<int32_t>();
  const auto features = static_cast<int64_t>(parts_[static_cast<size_t>(rank_)].features.size());
  for (const int64_t count : counts) {
    const int64_t samples = next[0], bags = features * samples;
    const bool weighted = next[1] != 0;
    const int64_t ids = (count - kHeader - bags) / (id_words_ + (weighted ? 1 : 0));
    Jagged batch{.values = at::empty({ids}, at::kLong),
                 .offsets = at::empty({bags + 1}, at::kLong),
                 .weights = weighted ? at::empty({ids}, at::kFloat) : at::Tensor(),
                 .features = features,
                 .samples = samples};
    auto* offsets = batch.offsets.mutable_data_ptr<int64_t>();
    offsets[0] = 0;
    std::partial_sum(next + kHeader, next + kHeader + bags, offsets + 1, std::plus<int64_t>());
    const int32_t* rows = next + kHeader + bags;
    auto* values = batch.values.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < ids; ++i) values[i] = read_id(rows + id_words_ * i, id_words_);
    if (weighted)
      std::transform(rows + id_words_ * ids, rows + (id_words_ + 1) * ids,
                     batch.weights.mutable_data_ptr<float>(),
                     [](int32_t bits) { return std::bit_cast<float>(bits); });
    received.push_back(std::move(batch));
    next += count;
  }
  // Batches are handled side by side, so they all have weights or none has.
  const auto is_weighted = [](const Jagged& batch) { return batch.weights.defined(); };
  if (std::ranges::any_of(received, is_weighted))
    for (Jagged& batch : received)
      if (!is_weighted(batch)) batch.weights = at::ones({batch.values.numel()}, at::kFloat);
  return received;
}

Message ShardedPack::pool_received(const std::vector<Jagged>& received) const {
  Message message;
  int64_t samples = 0;
  for (const Jagged& batch : received) samples += batch.samples;
  const at::Tensor y =
      allocate(samples * tables().columns(), tables().device()).view({samples, tables().columns()});
  const int64_t width = elements_of_row(payloads_.forward, tables().columns());
  int64_t first = 0;
  for (const Jagged& batch : received) {
    pool_batch(batch, y.narrow(0, first, batch.samples));
    first += batch.samples;
    message.counts.push_back(batch.samples * width);
  }
  message.elements = encode_rows(y, payloads_.forward);
  return message;
}

std::vector<int64_t> ShardedPack::pooled_counts(int64_t samples) const {
  std::vector<int64_t> counts;
  for (const Part& part : parts_)
    counts.push_back(samples * elements_of_row(payloads_.forward, part.columns));
  return counts;
}

void ShardedPack::add_pooled(const at::Tensor& elements, const Jagged& batch,
                             const at::Tensor& y) const {
  const std::vector<at::Tensor> of_ranks = elements.split_with_sizes(pooled_counts(batch.samples));
  for (size_t r = 0; r < parts_.size(); ++r) {
    const Part& part = parts_[r];
    const at::Tensor rows =
        decode_rows(of_ranks[r], payloads_.forward, batch.samples, part.columns);
    for (const Run& run : part.runs) {
      const at::Tensor to = y.narrow(1, run.whole, run.width),
                       from = rows.narrow(1, run.own, run.width);
      if (sharding_ == Sharding::kRowWise && r > 0) {
        to.add_(from);
      } else {
        to.copy_(from);
      }
    }
  }
  for (size_t f = 0; f < features_.size(); ++f)
    scale_mean(batch, f, y.narrow(1, feature_column_[f], feature_dim_[f]));
}

void ShardedPack::pool_replica(const Jagged& batch, const at::Tensor& y) const {
  const at::Tensor rows = allocate(batch.samples * tables().columns(), tables().device())
                              .view({batch.samples, tables().columns()});
  pool_batch(batch, rows);
  for (const Run& run : parts_[static_cast<size_t>(rank_)].runs)
    y.narrow(1, run.whole, run.width).copy_(rows.narrow(1, run.own, run.width));
}

void ShardedPack::scale_mean(const Jagged& batch, size_t feature, const at::Tensor& columns) const {
  if (!mean_by_samples_[feature]) return;
  const at::Tensor sizes =
      batch.offsets.narrow(0, static_cast<int64_t>(feature) * batch.samples, batch.samples + 1)
          .diff();
  columns.mul_(
      on(at::reciprocal(sizes.clamp_min(1).to(at::kFloat)).unsqueeze(1), columns.device()));
}

at::Tensor ShardedPack::own_columns(const Jagged& batch, const at::Tensor& gradient,
                                    const Part& part) const {
  std::vector<at::Tensor> pieces = {gradient.narrow(1, 0, 0)};
  for (const Run& run : part.runs) pieces.push_back(gradient.narrow(1, run.whole, run.width));
  at::Tensor rows = at::cat(pieces, 1);
  int64_t column = 0;
  for (const int64_t f : part.features) {
    if (sharding_ != Sharding::kRowWise) break;
    scale_mean(batch, static_cast<size_t>(f),
               rows.narrow(1, column, feature_dim_[static_cast<size_t>(f)]));
    column += feature_dim_[static_cast<size_t>(f)];
  }
  return rows;
}

Message ShardedPack::write_gradient(const Jagged& batch, const at::Tensor& gradient) const {
  Message message;
  std::vector<at::Tensor> of_ranks;
  for (const Part& part : parts_) {
    const bool again = same_for_all() && !of_ranks.empty();
    of_ranks.push_back(again ? of_ranks.front()
                             : encode_rows(own_columns(batch, gradient, part), payloads_.backward));
    message.counts.push_back(of_ranks.back().numel());
  }
  message.elements = at::cat(of_ranks);
  return message;
}

std::vector<int64_t> ShardedPack::gradient_counts(const std::vector<Jagged>& received) const {
  std::vector<int64_t> counts;
  counts.reserve(received.size());
  for (const Jagged& batch : received)
    counts.push_back(batch.samples * elements_of_row(payloads_.backward, tables().columns()));
  return counts;
}

std::vector<PooledGradient> ShardedPack::read_gradients(const at::Tensor& elements,
                                                        const std::vector<Jagged>& received) const {
  const std::vector<at::Tensor> of_ranks = elements.split_with_sizes(gradient_counts(received));
  std::vector<PooledGradient> gradients;
  for (size_t r = 0; r < received.size(); ++r)
    gradients.push_back({.batch = received[r],
                         .gradient = decode_rows(of_ranks[r], payloads_.backward,
                                                 received[r].samples, tables().columns())});
  return gradients;
}

}  // namespace dovetail::embedding
