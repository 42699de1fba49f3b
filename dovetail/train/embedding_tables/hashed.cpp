#include "dovetail/train/embedding_tables/hashed.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "dovetail/base/machine.h"
#include "dovetail/comm/collective.h"

namespace dovetail::train {
namespace {

/// Tensor of a hashed table in a checkpoint. kKnown belongs to the keys with rows, kCandidates to
/// the candidates.
struct Part {
  std::string_view name;
  at::Tensor& (*of)(embedding::KeyedRows& rows);
};
using Rows = embedding::KeyedRows;
constexpr std::array<Part, 5> kKnown = {{
    {"keys", [](Rows& rows) -> at::Tensor& { return rows.known.keys; }},
    {"occurrences", [](Rows& rows) -> at::Tensor& { return rows.known.occurrences; }},
    {"last_step", [](Rows& rows) -> at::Tensor& { return rows.known.last_step; }},
    {"weight", [](Rows& rows) -> at::Tensor& { return rows.weight; }},
    {"state", [](Rows& rows) -> at::Tensor& { return rows.state; }},
}};
constexpr std::array<Part, 3> kCandidates = {{
    {"candidate_keys", [](Rows& rows) -> at::Tensor& { return rows.candidates.keys; }},
    {"candidate_occurrences",
     [](Rows& rows) -> at::Tensor& { return rows.candidates.occurrences; }},
    {"candidate_last_step", [](Rows& rows) -> at::Tensor& { return rows.candidates.last_step; }},
}};

std::string removed_tensor(const std::string& table, std::span<const Part> group) {
  return table_tensor(table, fmt::format("removed_{}", group.front().name));
}

/// Parts of `group` that the table has, keys first. A table may have no optimizer state.
std::vector<Part> parts_of(std::span<const Part> group, const embedding::PackSpec& spec,
                           int64_t table) {
  std::vector<Part> parts;
  for (const Part& part : group)
    if (part.name != "state" || embedding::state_per_row(spec, table) > 0) parts.push_back(part);
  return parts;
}

/// Table in a checkpoint, or the piece of it with this suffix.
struct Written {
  const embedding::PackSpec& spec;
  int64_t table;
  io::CheckpointKind kind;
  std::string suffix;

  const std::string& name() const { return spec.tables[static_cast<size_t>(table)].name; }
};

/// Returns headers of the group's tensors with `rows` rows each.
std::vector<io::StreamedTensor> headers_of(std::span<const Part> group, const Written& written,
                                           int64_t rows) {
  const embedding::PackSpec& spec = written.spec;
  const int64_t t = written.table;
  const embedding::TableSpec& table = spec.tables[static_cast<size_t>(t)];
  const std::string keys = table_tensor(table.name, group.front().name) + written.suffix,
                    gone = removed_tensor(table.name, group) + written.suffix;
  std::vector<io::StreamedTensor> headers;
  for (const Part& part : parts_of(group, spec, t)) {
    const std::string name = table_tensor(table.name, part.name) + written.suffix;
    io::StreamedTensor header{name, at::kLong, {rows}, name == keys ? gone : keys};
    if (part.name == "weight") {
      header.dtype = embedding::stored_type(spec.row_dtype);
      header.shape.push_back(embedding::stored_width(spec.row_dtype, table.dim));
    } else if (part.name == "state") {
      header.dtype = at::kFloat;
      header.shape.push_back(embedding::state_per_row(spec, t));
    }
    if (written.kind == io::CheckpointKind::kFull) header.rows.clear();
    headers.push_back(std::move(header));
  }
  return headers;
}

/// Writes keys of a group that have left, in a delta.
void save_removed(std::span<const Part> group, const Written& written, const at::Tensor& removed,
                  io::StreamedTensors& to) {
  if (written.kind != io::CheckpointKind::kDelta) return;
  const std::string name = removed_tensor(written.name(), group) + written.suffix;
  to.begin({{name, at::kLong, {removed.numel()}}});
  to.append({removed});
}

at::Tensor part_of(const at::Tensor& tensor, int64_t first, int64_t count) {
  return tensor.narrow(0, first, count).contiguous();
}

/// Returns a KeyedRows without keys and candidates.
Rows no_keys(const embedding::PackSpec& spec, int64_t t) {
  const embedding::TableSpec& table = spec.tables[static_cast<size_t>(t)];
  const at::Tensor none = at::empty({0}, at::kLong);
  return {.known = {none, none, none, none},
          .weight = at::empty({0, embedding::stored_width(spec.row_dtype, table.dim)},
                              embedding::stored_type(spec.row_dtype)),
          .state = at::empty({0, embedding::state_per_row(spec, t)}, at::kFloat),
          .candidates = {none, none, none, none}};
}

}  // namespace

std::string table_tensor(const std::string& table, std::string_view part) {
  return fmt::format("embedding.{}.{}", table, part);
}

std::vector<std::string> hashed_tensors(const embedding::PackSpec& spec, int64_t t) {
  const embedding::TableSpec& table = spec.tables[static_cast<size_t>(t)];
  std::vector<std::string> names;
  for (const std::span<const Part> group :
       {std::span<const Part>(kKnown), std::span<const Part>(kCandidates)})
    for (const Part& part : parts_of(group, spec, t))
      names.push_back(table_tensor(table.name, part.name));
  return names;
}

int64_t rows_in_block(const embedding::PackSpec& spec, int64_t t) {
  constexpr int64_t kBlockBytes = int64_t{4} << 20;
  const int64_t bytes =
      embedding::row_bytes(spec.row_dtype, spec.tables[static_cast<size_t>(t)].dim) +
      embedding::state_per_row(spec, t) * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, kBlockBytes / bytes);
}

void save_hashed_tables(const embedding::DistributedTables& tables, io::CheckpointKind kind,
                        TableWriters writers, io::StreamedTensors* to) {
  const embedding::PackSpec& spec = tables.spec();
  const auto which =
      kind == io::CheckpointKind::kFull ? embedding::RowSet::kAll : embedding::RowSet::kChanged;
  const bool holders = writers == TableWriters::kHolders;
  for (int64_t t = 0; t < std::ssize(spec.tables); ++t) {
    if (!tables.is_hashed(t)) continue;
    const bool pieces = holders && tables.cut_by_rows(t);
    if (holders && !pieces && tables.rank() != tables.saving_rank(t)) continue;
    const Written written{spec, t, kind,
                          pieces ? piece_suffix(tables.rank(), tables.plan().ranks) : ""};
    Rows keys = holders ? tables.own_keys(t, which) : tables.list_keys(t, which);
    const int64_t block = rows_in_block(spec, t);
    if (to != nullptr) to->begin(headers_of(kKnown, written, keys.known.keys.numel()));
    const auto append = [&](int64_t first, const embedding::TableContents& rows) {
      const int64_t count = rows.weight.size(0);
      std::vector<at::Tensor> tensors = {part_of(keys.known.keys, first, count),
                                         part_of(keys.known.occurrences, first, count),
                                         part_of(keys.known.last_step, first, count), rows.weight};
      if (rows.state.size(1) > 0) tensors.push_back(rows.state);
      to->append(tensors);
    };
    if (holders) {
      const int64_t n = keys.known.keys.numel();
      for (int64_t first = 0; first < n; first += block)
        append(first,
               tables.own_rows(t, part_of(keys.known.keys, first, std::min(block, n - first))));
    } else {
      tables.read_rows(t, keys.known.keys, block, append);
    }
    if (to == nullptr) continue;
    save_removed(kKnown, written, keys.known.removed, *to);
    to->begin(headers_of(kCandidates, written, keys.candidates.keys.numel()));
    to->append({keys.candidates.keys, keys.candidates.occurrences, keys.candidates.last_step});
    save_removed(kCandidates, written, keys.candidates.removed, *to);
  }
}

Rows read_removed(const embedding::PackSpec& spec, int64_t t, const std::string& suffix,
                  const io::StoredCheckpoint::Link& from) {
  Rows rows = no_keys(spec, t);
  const auto read = [&](std::span<const Part> group, at::Tensor& removed) {
    const std::string name =
        removed_tensor(spec.tables[static_cast<size_t>(t)].name, group) + suffix;
    if (const auto file = from.files.find(name); file != from.files.end())
      removed = file->second->read(name);
  };
  read(kKnown, rows.known.removed);
  read(kCandidates, rows.candidates.removed);
  return rows;
}

Rows read_candidates(const embedding::PackSpec& spec, int64_t t, const std::string& suffix,
                     const io::StoredCheckpoint::Link& from) {
  Rows rows = no_keys(spec, t);
  for (const Part& part : parts_of(kCandidates, spec, t)) {
    const std::string name =
        table_tensor(spec.tables[static_cast<size_t>(t)].name, part.name) + suffix;
    part.of(rows) = from.files.at(name)->read(name).contiguous();
  }
  return rows;
}

Rows read_keys(const embedding::PackSpec& spec, int64_t t, const std::string& suffix,
               const io::StoredCheckpoint::Link& from, int64_t first, int64_t count) {
  Rows rows = no_keys(spec, t);
  rows.state = at::Tensor();
  for (const Part& part : parts_of(kKnown, spec, t)) {
    const std::string name =
        table_tensor(spec.tables[static_cast<size_t>(t)].name, part.name) + suffix;
    part.of(rows) = from.files.at(name)->read_rows(name, first, count).contiguous();
  }
  return rows;
}

embedding::HashedCounters sum_over_ranks(comm::Group& group,
                                         const std::optional<embedding::HashedCounters>& own) {
  const embedding::HashedCounters from = own.value_or(embedding::HashedCounters());
  std::vector<double> values;
  values.reserve(embedding::kHashedCounters.size());
  for (const auto& [name, counter] : embedding::kHashedCounters)
    values.push_back(static_cast<double>(from.*counter));
  values = sum_over_ranks(group, values);
  embedding::HashedCounters sum;
  for (size_t i = 0; i < values.size(); ++i)
    sum.*embedding::kHashedCounters[i].second = static_cast<int64_t>(values[i]);
  return sum;
}

nlohmann::ordered_json counters_json(int64_t step, const embedding::HashedCounters& now,
                                     const embedding::HashedCounters& before) {
  nlohmann::ordered_json line = {{"step", step}};
  for (size_t i = 0; i < embedding::kHashedCounters.size(); ++i) {
    const auto& [name, counter] = embedding::kHashedCounters[i];
    line[std::string(name)] =
        now.*counter - (i < embedding::kPresentCounters ? 0 : before.*counter);
  }
  return line;
}

std::string counters_line(const embedding::HashedCounters& c) {
  return fmt::format(
      "tables without a vocabulary: {} rows in {}, {} admitted, {} evicted. Accesses: {} found, {} "
      "of keys not admitted, {} refused for lack of rows, {} of memory, {} of candidates",
      format_grouped(c.rows), format_bytes(static_cast<double>(c.bytes)),
      format_grouped(c.admitted), format_grouped(c.evicted), format_grouped(c.found),
      format_grouped(c.not_admitted), format_grouped(c.refused_full),
      format_grouped(c.refused_memory), format_grouped(c.refused_candidates));
}

std::vector<std::string> room_warnings(const embedding::HashedCounters& c) {
  constexpr double kHighShare = 0.1;
  const auto accesses = static_cast<double>(c.found + c.not_admitted + c.refused_full +
                                            c.refused_memory + c.refused_candidates);
  std::vector<std::string> warnings;
  for (const auto& [refused, what] :
       {std::pair(c.refused_full, "get no row, since max_rows are taken"),
        std::pair(c.refused_memory, "get no row, since max_bytes are taken"),
        std::pair(c.refused_candidates, "are not counted, since max_candidates are")})
    if (static_cast<double>(refused) > kHighShare * accesses)
      warnings.push_back(
          fmt::format("tables without a vocabulary: {:.0f} % of the accesses are of ids that {}; "
                      "raise it, or let rows leave (embedding.dynamic.eviction)",
                      100 * static_cast<double>(refused) / accesses, what));
  return warnings;
}

}  // namespace dovetail::train
