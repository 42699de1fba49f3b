#include "dovetail/train/embedding_tables/hashed.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

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

/// Parts of `group` that the table has, keys first. A table may have no optimizer state.
std::vector<Part> parts_of(std::span<const Part> group, const embedding::PackSpec& spec,
                           int64_t table) {
  std::vector<Part> parts;
  for (const Part& part : group)
    if (part.name != "state" || embedding::state_per_row(spec, table) > 0) parts.push_back(part);
  return parts;
}

void save(const embedding::PackSpec& spec, int64_t t, io::CheckpointKind kind, Rows rows,
          io::StreamedTensors& to) {
  const std::string& table = spec.tables[static_cast<size_t>(t)].name;
  const auto write = [&](std::span<const Part> group, const at::Tensor& removed) {
    std::vector<io::StreamedTensor> headers;
    std::vector<at::Tensor> tensors;
    const auto add = [&](std::string name, const at::Tensor& tensor, const std::string& numbers) {
      headers.push_back({std::move(name), tensor.scalar_type(), tensor.sizes().vec(),
                         kind == io::CheckpointKind::kFull ? "" : numbers});
      tensors.push_back(tensor.contiguous());
    };
    const std::string keys = table_tensor(table, group.front().name),
                      gone = table_tensor(table, fmt::format("removed_{}", group.front().name));
    for (const Part& part : parts_of(group, spec, t)) {
      const std::string name = table_tensor(table, part.name);
      add(name, part.of(rows), name == keys ? gone : keys);
    }
    if (kind == io::CheckpointKind::kDelta) add(gone, removed, "");
    to.begin(headers);
    to.append(tensors);
  };
  write(kKnown, rows.known.removed);
  write(kCandidates, rows.candidates.removed);
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

void save_hashed_tables(const embedding::DistributedTables& tables, io::CheckpointKind kind,
                        io::StreamedTensors* to) {
  const auto which =
      kind == io::CheckpointKind::kFull ? embedding::RowSet::kAll : embedding::RowSet::kChanged;
  for (int64_t t = 0; t < std::ssize(tables.spec().tables); ++t) {
    if (!tables.is_hashed(t)) continue;
    Rows rows = tables.read_keys(t, which);
    if (to != nullptr) save(tables.spec(), t, kind, std::move(rows), *to);
  }
}

embedding::KeyedRows read_hashed_table(const embedding::PackSpec& spec, int64_t table,
                                       const io::StoredCheckpoint& from) {
  Rows rows;
  for (const std::span<const Part> group :
       {std::span<const Part>(kKnown), std::span<const Part>(kCandidates)})
    for (const Part& part : parts_of(group, spec, table))
      part.of(rows) =
          from.read(table_tensor(spec.tables[static_cast<size_t>(table)].name, part.name))
              .contiguous();
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
