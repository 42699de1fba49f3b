#include "dovetail/train/hashed_tables.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dovetail/base/machine.h"
#include "dovetail/train/collective.h"

namespace dovetail {
namespace {

using Counter = int64_t embedding::HashedCounters::*;
constexpr std::array<std::pair<const char*, Counter>, 9> kCounters = {{
    {"rows", &embedding::HashedCounters::rows},
    {"candidates", &embedding::HashedCounters::candidates},
    {"found", &embedding::HashedCounters::found},
    {"admitted", &embedding::HashedCounters::admitted},
    {"not_admitted", &embedding::HashedCounters::not_admitted},
    {"refused_full", &embedding::HashedCounters::refused_full},
    {"refused_candidates", &embedding::HashedCounters::refused_candidates},
    {"evicted", &embedding::HashedCounters::evicted},
    {"candidates_evicted", &embedding::HashedCounters::candidates_evicted},
}};

bool has_state(const embedding::PackSpec& spec, const embedding::TableSpec& table) {
  return embedding::state_per_row(spec.optimizer.kind, table.dim) > 0;
}

void restore(embedding::DistributedTables& tables, int64_t t, const StoredCheckpoint* from) {
  const embedding::TableSpec& table = tables.spec().tables[static_cast<size_t>(t)];
  const auto get = [&](const char* part) {
    return from == nullptr ? at::Tensor() : from->read(table_tensor(table.name, part)).contiguous();
  };
  const bool state = has_state(tables.spec(), table);
  embedding::KeyedRows rows{
      .known = {get("keys"), get("occurrences"), get("last_step")},
      .weight = get("weight"),
      .state = state ? get("state") : at::Tensor(),
      .candidates = {get("candidate_keys"), get("candidate_occurrences"), get("candidate_last_step")}};
  if (from != nullptr && !state) rows.state = at::empty({rows.known.keys.numel(), 0}, at::kFloat);
  tables.write_keys(t, rows);
}

}  // namespace

std::string table_tensor(const std::string& table, std::string_view part) {
  return fmt::format("embedding.{}.{}", table, part);
}

std::vector<std::string> hashed_tensors(const embedding::PackSpec& spec, const embedding::TableSpec& table) {
  std::vector<std::string> names;
  for (const char* part : {"keys", "occurrences", "last_step", "candidate_keys", "candidate_occurrences",
                           "candidate_last_step", "weight", "state"})
    if (std::string_view(part) != "state" || has_state(spec, table)) names.push_back(table_tensor(table.name, part));
  return names;
}

void add_hashed_tables(const embedding::DistributedTables& tables, bool here,
                       std::map<std::string, at::Tensor>& tensors) {
  for (int64_t t = 0; t < std::ssize(tables.spec().tables); ++t) {
    if (!tables.is_hashed(t)) continue;
    const embedding::TableSpec& table = tables.spec().tables[static_cast<size_t>(t)];
    const embedding::KeyedRows all = tables.read_keys(t);
    if (!here) continue;
    const auto add = [&](const char* part, const at::Tensor& tensor) {
      tensors[table_tensor(table.name, part)] = tensor;
    };
    add("keys", all.known.keys);
    add("occurrences", all.known.occurrences);
    add("last_step", all.known.last_step);
    add("candidate_keys", all.candidates.keys);
    add("candidate_occurrences", all.candidates.occurrences);
    add("candidate_last_step", all.candidates.last_step);
    add("weight", all.weight);
    if (has_state(tables.spec(), table)) add("state", all.state);
  }
}

void restore_hashed_tables(embedding::DistributedTables& tables, const StoredCheckpoint* from) {
  for (int64_t t = 0; t < std::ssize(tables.spec().tables); ++t)
    if (tables.is_hashed(t)) restore(tables, t, from);
}

embedding::HashedCounters sum_over_ranks(Group& group, const std::optional<embedding::HashedCounters>& own) {
  const embedding::HashedCounters from = own.value_or(embedding::HashedCounters());
  std::vector<double> values;
  values.reserve(kCounters.size());
  for (const auto& [name, member] : kCounters) values.push_back(static_cast<double>(from.*member));
  values = sum_over_ranks(group, values);
  embedding::HashedCounters sum;
  for (size_t i = 0; i < kCounters.size(); ++i) sum.*kCounters[i].second = static_cast<int64_t>(values[i]);
  return sum;
}

nlohmann::ordered_json counters_json(int64_t step, const embedding::HashedCounters& now,
                                     const embedding::HashedCounters& before) {
  nlohmann::ordered_json line = {{"step", step}};
  for (const auto& [name, member] : kCounters) {
    const bool present = member == &embedding::HashedCounters::rows || member == &embedding::HashedCounters::candidates;
    line[name] = now.*member - (present ? 0 : before.*member);
  }
  return line;
}

std::string counters_line(const embedding::HashedCounters& c) {
  return fmt::format(
      "tables without a vocabulary: {} rows, {} admitted, {} evicted; accesses: {} found, {} of keys not admitted, {} "
      "refused for want of rows, {} of candidates",
      format_grouped(c.rows), format_grouped(c.admitted), format_grouped(c.evicted), format_grouped(c.found),
      format_grouped(c.not_admitted), format_grouped(c.refused_full), format_grouped(c.refused_candidates));
}

}  // namespace dovetail
