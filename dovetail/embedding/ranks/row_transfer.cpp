#include "dovetail/embedding/ranks/row_transfer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/embedding/pack/slot_map.h"

namespace dovetail::embedding {

namespace {

/// Ids between a lookup in the map and the prefetch for a later one.
constexpr int64_t kPrefetched = 12;

}  // namespace

RowTransfer::RowTransfer(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                         int64_t rank, const comm::Payloads& payloads, bool counted,
                         at::Device device)
    : sharding_(pack.sharding),
      hashed_(pack.hashed),
      counted_(counted),
      ranks_(plan.ranks),
      rank_(rank),
      id_words_(pack.hashed ? 2 : 1),
      payloads_(payloads),
      device_(device),
      table_features_(pack.tables.size()) {
  const std::vector<int64_t> features = features_of(spec, pack), columns = whole_columns(spec);
  for (const int64_t t : pack.tables) {
    const TableSpec& table = spec.tables[static_cast<size_t>(t)];
    spec_.tables.push_back({.name = table.name, .dim = table.dim, .pooling = table.pooling});
    table_rank_.push_back(plan.tables[static_cast<size_t>(t)].rank);
  }
  for (const int64_t f : features) {
    const int64_t t =
        std::ranges::lower_bound(pack.tables, spec.feature_table[static_cast<size_t>(f)]) -
        pack.tables.begin();
    table_features_[static_cast<size_t>(t)].push_back(std::ssize(spec_.feature_table));
    spec_.feature_table.push_back(t);
    spec_.feature_columns.push_back(columns[static_cast<size_t>(f)]);
  }
  spec_.columns = columns.back();
  // A step from zeros with this optimizer is the negative sum of the gradients.
  spec_.optimizer = {.kind = OptimizerKind::kSgd, .lr = 1, .weight_decay = 0};
  for (int64_t r = 0; r < ranks_; ++r) {
    Part part;
    for (int64_t t = 0; t < std::ssize(pack.tables); ++t) {
      if (sharding_ == Sharding::kTableWise && table_rank_[static_cast<size_t>(t)] != r) continue;
      const TableSpec local = local_table(spec, plan, pack.tables[static_cast<size_t>(t)], r);
      part.tables.push_back(
          {.table = t, .first_column = local.slice.first_column, .dim = local.dim, .features = {}});
    }
    for (int64_t f = 0; f < std::ssize(features); ++f) {
      const auto found = std::ranges::find(part.tables, spec_.feature_table[static_cast<size_t>(f)],
                                           &TablePart::table);
      if (found == part.tables.end()) continue;
      found->features.push_back(part.features.size());
      part.features.push_back(f);
    }
    parts_.push_back(std::move(part));
  }
}

/// Writes the number of each id's entry to `numbers`.
RowTransfer::Entries RowTransfer::find_distinct(const Jagged& batch, int64_t* numbers) const {
  const auto *values = batch.values.const_data_ptr<int64_t>(),
             *offsets = batch.offsets.const_data_ptr<int64_t>();
  const auto ranks = static_cast<uint64_t>(ranks_);
  Entries found{.of_table = std::vector<std::vector<Entry>>(table_features_.size()),
                .begin = std::vector<size_t>(spec_.feature_table.size()),
                .end = std::vector<size_t>(spec_.feature_table.size())};
  parallel_pieces(std::ssize(table_features_), 1, [&](int64_t begin, int64_t end) {
    for (auto t = static_cast<size_t>(begin); t < static_cast<size_t>(end); ++t) {
      std::vector<Entry>& entries = found.of_table[t];
      SlotMap<uint64_t> map(16);
      for (const int64_t f : table_features_[t]) {
        found.begin[static_cast<size_t>(f)] = entries.size();
        for (int64_t i = offsets[f * batch.samples]; i < offsets[(f + 1) * batch.samples]; ++i) {
          if (i + kPrefetched < batch.values.size(0))
            map.prefetch(static_cast<uint64_t>(values[i + kPrefetched]));
          const auto key = static_cast<uint64_t>(values[i]);
          uint32_t number = map.find(key);
          if (number == SlotMap<uint64_t>::kNone) {
            if (map.size() == map.room()) map.resize(2 * map.room());
            number = static_cast<uint32_t>(entries.size());
            map.insert(key, number);
            const bool divided = by_rows() && !hashed_;
            entries.push_back({.id = divided ? static_cast<int64_t>(key / ranks) : values[i],
                               .rank = static_cast<int64_t>(key % ranks),
                               .occurrences = 0});
          }
          ++entries[number].occurrences;
          numbers[i] = number;
        }
        found.end[static_cast<size_t>(f)] = entries.size();
      }
    }
  });
  return found;
}

/// Sets the counts of a step. The rows of a row-wise table lie in the order of their ranks. So
/// numbers of entries in `numbers` become these places.
void RowTransfer::place_rows(const Entries& entries, int64_t* numbers, Step& step) const {
  const auto* offsets = step.batch.offsets.const_data_ptr<int64_t>();
  for (size_t t = 0; t < table_features_.size(); ++t) {
    const auto distinct = std::ssize(entries.of_table[t]);
    step.distinct.push_back(distinct);
    step.counts.emplace_back(static_cast<size_t>(ranks_), by_rows() ? 0 : distinct);
    step.first.emplace_back(static_cast<size_t>(ranks_), 0);
    if (!by_rows()) continue;
    for (const Entry& entry : entries.of_table[t])
      ++step.counts[t][static_cast<size_t>(entry.rank)];
    std::exclusive_scan(step.counts[t].begin(), step.counts[t].end(), step.first[t].begin(),
                        int64_t{0});
    std::vector<int64_t> next = step.first[t], places;
    places.reserve(entries.of_table[t].size());
    for (const Entry& entry : entries.of_table[t])
      places.push_back(next[static_cast<size_t>(entry.rank)]++);
    const std::vector<int64_t>& features = table_features_[t];
    parallel_pieces(std::ssize(features), 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t f = features[static_cast<size_t>(k)];
        for (int64_t i = offsets[f * step.batch.samples]; i < offsets[(f + 1) * step.batch.samples];
             ++i)
          numbers[i] = places[static_cast<size_t>(numbers[i])];
      }
    });
  }
}

Message RowTransfer::write_entries(const Entries& entries) const {
  struct Range {
    const Entry *begin, *end;
    int64_t rank, first, count, ids_of_rank, ids_at;
  };
  Message message;
  std::vector<Range> ranges;                         // ids of each rank and feature
  std::vector<std::pair<int64_t, int64_t>> lengths;  // place and value
  int64_t next = 0;
  for (int64_t r = 0; r < ranks_; ++r) {
    const Part& part = parts_[static_cast<size_t>(r)];
    const size_t first_range = ranges.size();
    const int64_t begin = next;
    int64_t ids = 0;
    for (const int64_t f : part.features) {
      const auto feature = static_cast<size_t>(f);
      const Entry* of_table =
          entries.of_table[static_cast<size_t>(spec_.feature_table[feature])].data();
      Range range{.begin = of_table + entries.begin[feature],
                  .end = of_table + entries.end[feature],
                  .rank = r,
                  .first = ids,
                  .count = 0,
                  .ids_of_rank = 0,
                  .ids_at = 0};
      range.count = by_rows() ? std::count_if(range.begin, range.end,
                                              [&](const Entry& entry) { return entry.rank == r; })
                              : range.end - range.begin;
      lengths.emplace_back(next++, range.count);
      ids += range.count;
      ranges.push_back(range);
    }
    for (size_t i = first_range; i < ranges.size(); ++i) {
      ranges[i].ids_of_rank = ids;
      ranges[i].ids_at = next;
    }
    next += (id_words_ + (counted_ ? 1 : 0)) * ids;
    message.counts.push_back(next - begin);
  }
  message.elements = at::empty({next}, at::kInt);
  auto* words = message.elements.mutable_data_ptr<int32_t>();
  for (const auto& [place, length] : lengths) words[place] = static_cast<int32_t>(length);
  parallel_pieces(std::ssize(ranges), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Range& range = ranges[static_cast<size_t>(i)];
      int32_t *ids = words + range.ids_at + id_words_ * range.first,
              *occurrences = words + range.ids_at + id_words_ * range.ids_of_rank + range.first;
      for (const Entry* entry = range.begin; entry != range.end; ++entry) {
        if (by_rows() && entry->rank != range.rank) continue;
        write_id(entry->id, id_words_, ids);
        ids += id_words_;
        if (counted_) *occurrences++ = entry->occurrences;
      }
    }
  });
  return message;
}

RowTransfer::Step RowTransfer::write_ids(const Jagged& batch, Message& message) const {
  const TraceSpan span("dovetail::embedding_distinct");
  Step step{.batch = batch, .counts = {}, .first = {}, .distinct = {}, .tables = {}};
  step.batch.values = at::empty_like(batch.values);
  auto* numbers = step.batch.values.mutable_data_ptr<int64_t>();
  const Entries entries = find_distinct(batch, numbers);
  place_rows(entries, numbers, step);
  message = write_entries(entries);
  return step;
}

std::vector<RowTransfer::Received> RowTransfer::read_ids(const at::Tensor& words,
                                                         const std::vector<int64_t>& counts) const {
  std::vector<Received> received;
  const auto features = std::ssize(own_part().features);
  const int32_t* next = words.const_data_ptr<int32_t>();
  for (const int64_t count : counts) {
    const int64_t ids = (count - features) / (id_words_ + (counted_ ? 1 : 0));
    Received from{.ids = {.values = at::empty({ids}, at::kLong),
                          .offsets = at::empty({features + 1}, at::kLong),
                          .weights = {},
                          .features = features,
                          .samples = 1},
                  .occurrences = counted_ ? at::empty({ids}, at::kLong) : at::Tensor()};
    auto* offsets = from.ids.offsets.mutable_data_ptr<int64_t>();
    offsets[0] = 0;
    std::partial_sum(next, next + features, offsets + 1, std::plus<int64_t>());
    const int32_t* id = next + features;
    auto* values = from.ids.values.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < ids; ++i, id += id_words_) values[i] = read_id(id, id_words_);
    if (counted_) std::copy_n(id, ids, from.occurrences.mutable_data_ptr<int64_t>());
    received.push_back(std::move(from));
    next += count;
  }
  return received;
}

std::vector<int64_t> RowTransfer::counts_of(const std::vector<Received>& received,
                                            const TablePart& part) {
  std::vector<int64_t> counts;
  for (const Received& from : received) {
    const auto* offsets = from.ids.offsets.const_data_ptr<int64_t>();
    counts.push_back(0);
    for (const size_t f : part.features) counts.back() += offsets[f + 1] - offsets[f];
  }
  return counts;
}

std::vector<at::Tensor> RowTransfer::ids_of_tables(const std::vector<Received>& received) const {
  std::vector<at::Tensor> ids;
  for (const TablePart& part : own_part().tables) {
    std::vector<at::Tensor> pieces;
    for (const Received& from : received) {
      const auto* offsets = from.ids.offsets.const_data_ptr<int64_t>();
      for (const size_t f : part.features)
        pieces.push_back(from.ids.values.narrow(0, offsets[f], offsets[f + 1] - offsets[f]));
    }
    ids.push_back(pieces.empty() ? at::empty({0}, at::kLong) : at::cat(pieces));
  }
  return ids;
}

Message RowTransfer::write_rows(const std::vector<Received>& received,
                                const std::vector<at::Tensor>& ids, const Gather& gather) const {
  Message message{.elements = {}, .counts = std::vector<int64_t>(received.size(), 0)};
  std::vector<std::vector<at::Tensor>> of_tables;  // messages of each table to each rank
  for (size_t t = 0; t < own_part().tables.size(); ++t) {
    const TablePart& part = own_part().tables[t];
    std::vector<int64_t> sizes = counts_of(received, part);
    for (int64_t& size : sizes) size *= elements_of_row(payloads_.forward, part.dim);
    const at::Tensor rows = gather(static_cast<int64_t>(t), ids[t]);
    of_tables.push_back(encode_rows(rows, payloads_.forward).split_with_sizes(sizes));
  }
  std::vector<at::Tensor> pieces = {no_elements(payloads_.forward, device_)};
  for (size_t r = 0; r < received.size(); ++r) {
    for (const std::vector<at::Tensor>& of_table : of_tables) {
      pieces.push_back(of_table[r]);
      message.counts[r] += of_table[r].numel();
    }
  }
  message.elements = at::cat(pieces);
  return message;
}

std::vector<int64_t> RowTransfer::row_elements(const Step& step) const {
  std::vector<int64_t> elements;
  for (size_t r = 0; r < parts_.size(); ++r) {
    elements.push_back(0);
    for (const TablePart& part : parts_[r].tables)
      elements.back() += step.counts[static_cast<size_t>(part.table)][r] *
                         elements_of_row(payloads_.forward, part.dim);
  }
  return elements;
}

PackSpec RowTransfer::spec_of(const Step& step) const {
  PackSpec spec = spec_;
  for (size_t t = 0; t < spec.tables.size(); ++t)
    spec.tables[t].rows = std::max<int64_t>(1, step.distinct[t]);
  return spec;
}

void RowTransfer::assemble(Step& step, int64_t first_rank, int64_t end_rank,
                           const std::vector<at::Tensor>& rows) const {
  PackSpec spec = spec_of(step);
  std::vector<at::Tensor> stored, to;
  for (const TableSpec& table : spec.tables)
    stored.push_back(allocate(table.rows * table.dim, device_).view({table.rows, table.dim}));
  for (auto r = static_cast<size_t>(first_rank); r < static_cast<size_t>(end_rank); ++r) {
    for (const TablePart& part : parts_[r].tables) {
      const auto t = static_cast<size_t>(part.table);
      to.push_back(stored[t]
                       .narrow(0, step.first[t][r], step.counts[t][r])
                       .narrow(1, part.first_column, part.dim));
    }
  }
  if (!to.empty()) at::_foreach_copy_(to, rows);
  step.tables.emplace(std::move(spec), std::move(stored));
}

void RowTransfer::receive_rows(const at::Tensor& elements, Step& step) const {
  std::vector<RowGroup> groups;
  for (size_t r = 0; r < parts_.size(); ++r)
    for (const TablePart& part : parts_[r].tables)
      groups.push_back({step.counts[static_cast<size_t>(part.table)][r], part.dim});
  assemble(step, 0, ranks_, decode_groups(elements, payloads_.forward, groups));
}

void RowTransfer::take_rows(const std::vector<Received>& received,
                            const std::vector<at::Tensor>& ids, const Gather& gather,
                            Step& step) const {
  std::vector<at::Tensor> rows;
  for (size_t t = 0; t < own_part().tables.size(); ++t) {
    const std::vector<int64_t> counts = counts_of(received, own_part().tables[t]);
    const int64_t first = std::accumulate(counts.begin(), counts.begin() + rank_, int64_t{0});
    rows.push_back(gather(static_cast<int64_t>(t),
                          ids[t].narrow(0, first, counts[static_cast<size_t>(rank_)])));
  }
  assemble(step, rank_, rank_ + 1, rows);
}

Message RowTransfer::write_gradients(const Step& step,
                                     const std::vector<PooledGradient>& gradients) const {
  PackedTables sums(spec_of(step), PackedTables::Initial::kUnset, device_);
  std::vector<at::Tensor> stored;
  for (size_t t = 0; t < step.distinct.size(); ++t)
    stored.push_back(sums.stored(static_cast<int64_t>(t)));
  at::_foreach_zero_(stored);
  update(sums, gradients, Ids::kChecked);
  at::_foreach_neg_(stored);
  Message message;
  std::vector<at::Tensor> pieces = {no_elements(payloads_.backward, device_)};
  for (size_t r = 0; r < parts_.size(); ++r) {
    message.counts.push_back(0);
    for (const TablePart& part : parts_[r].tables) {
      const auto t = static_cast<size_t>(part.table);
      const at::Tensor sum = stored[t]
                                 .narrow(0, step.first[t][r], step.counts[t][r])
                                 .narrow(1, part.first_column, part.dim);
      pieces.push_back(encode_rows(sum, payloads_.backward));
      message.counts.back() += pieces.back().numel();
    }
  }
  message.elements = at::cat(pieces);
  return message;
}

std::vector<int64_t> RowTransfer::gradient_elements(const std::vector<Received>& received) const {
  std::vector<int64_t> elements(received.size(), 0);
  for (const TablePart& part : own_part().tables) {
    const std::vector<int64_t> counts = counts_of(received, part);
    for (size_t r = 0; r < counts.size(); ++r)
      elements[r] += counts[r] * elements_of_row(payloads_.backward, part.dim);
  }
  return elements;
}

std::vector<RowGradients> RowTransfer::read_gradients(const at::Tensor& elements,
                                                      const std::vector<Received>& received,
                                                      const std::vector<at::Tensor>& ids) const {
  std::vector<std::vector<at::Tensor>> rows;  // by table and rank
  for (size_t t = 0; t < ids.size(); ++t)
    rows.push_back(ids[t].split_with_sizes(counts_of(received, own_part().tables[t])));
  std::vector<RowGroup> groups;
  for (size_t r = 0; r < received.size(); ++r)
    for (size_t t = 0; t < ids.size(); ++t)
      groups.push_back({rows[t][r].numel(), own_part().tables[t].dim});
  const std::vector<at::Tensor> decoded = decode_groups(elements, payloads_.backward, groups);
  std::vector<RowGradients> gradients(received.size());
  for (size_t r = 0; r < received.size(); ++r) {
    for (size_t t = 0; t < ids.size(); ++t) {
      gradients[r].rows.push_back(rows[t][r]);
      gradients[r].gradient.push_back(decoded[r * ids.size() + t]);
    }
  }
  return gradients;
}

}  // namespace dovetail::embedding
