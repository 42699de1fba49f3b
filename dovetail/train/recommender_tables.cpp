#include "dovetail/train/recommender_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/ops/dispatch.h"
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

const at::Tensor& find(const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  user_check(found != tensors.end(), "the checkpoint lacks the tensor \"{}\" of this model", name);
  return found->second;
}

/// Takes a table's tensors out of `left` and throws UserError where one is not what the spec says.
void check_table(const embedding::PackSpec& spec, const embedding::TableSpec& table,
                 std::map<std::string, at::Tensor>& left) {
  const auto take = [&](const char* part, at::IntArrayRef sizes, at::ScalarType dtype) {
    const std::string name = table_tensor(table.name, part);
    const at::Tensor& found = find(left, name);
    user_check(found.sizes() == sizes && found.scalar_type() == dtype,
               "the checkpoint's \"{}\" is {}, but the table's is ({}) {}, as embedding.row_dtype = \"{}\" has it",
               name, describe(found), fmt::join(sizes, ", "), c10::toString(dtype), embedding::name(spec.row_dtype));
    left.erase(name);
  };
  const auto rows_of = [&](const char* part) { return find(left, table_tensor(table.name, part)).numel(); };
  int64_t rows = table.rows;
  if (table.hashed) {
    rows = rows_of("keys");
    const int64_t candidates = rows_of("candidate_keys");
    for (const char* part : {"keys", "occurrences", "last_step"}) take(part, {rows}, at::kLong);
    for (const char* part : {"candidate_keys", "candidate_occurrences", "candidate_last_step"})
      take(part, {candidates}, at::kLong);
  }
  take("weight", {rows, embedding::stored_width(spec.row_dtype, table.dim)}, embedding::stored_type(spec.row_dtype));
  const int64_t state = embedding::state_per_row(spec.optimizer.kind, table.dim);
  if (state > 0) take("state", {rows, state}, at::kFloat);
}

}  // namespace

std::string table_tensor(const std::string& table, std::string_view part) {
  return fmt::format("{}{}.{}", kTablePrefix, table, part);
}

void check_tables(const embedding::PackSpec& spec, std::map<std::string, at::Tensor> tensors) {
  for (const embedding::TableSpec& table : spec.tables) check_table(spec, table, tensors);
  if (!tensors.empty())
    throw UserError(fmt::format("the checkpoint's \"{}\" is not a table of this model", tensors.begin()->first));
}

void add_table(const embedding::DistributedTables& tables, int64_t table, bool here,
               std::map<std::string, at::Tensor>& tensors) {
  const std::string& name = tables.spec().tables[static_cast<size_t>(table)].name;
  const auto add = [&](const char* part, const at::Tensor& tensor) { tensors[table_tensor(name, part)] = tensor; };
  embedding::TableContents rows;
  if (tables.is_hashed(table)) {
    const embedding::KeyedRows all = tables.read_keys(table);
    rows = {.weight = all.weight, .state = all.state};
    if (here) {
      add("keys", all.known.keys);
      add("occurrences", all.known.occurrences);
      add("last_step", all.known.last_step);
      add("candidate_keys", all.candidates.keys);
      add("candidate_occurrences", all.candidates.occurrences);
      add("candidate_last_step", all.candidates.last_step);
    }
  } else {
    rows = tables.read(table);
  }
  if (!here) return;
  add("weight", rows.weight);
  if (embedding::state_per_row(tables.spec().optimizer.kind, 1) > 0) add("state", rows.state);
}

void restore_table(embedding::DistributedTables& tables, int64_t table, bool here,
                   const std::map<std::string, at::Tensor>& tensors) {
  const embedding::TableSpec& spec = tables.spec().tables[static_cast<size_t>(table)];
  const bool has_state = embedding::state_per_row(tables.spec().optimizer.kind, spec.dim) > 0;
  const auto get = [&](const char* part) {
    return here ? tensors.at(table_tensor(spec.name, part)).contiguous() : at::Tensor();
  };
  if (!tables.is_hashed(table))
    return tables.write(table, {.weight = get("weight"), .state = has_state ? get("state") : at::Tensor()});
  embedding::KeyedRows rows{
      .known = {get("keys"), get("occurrences"), get("last_step")},
      .weight = get("weight"),
      .state = has_state ? get("state") : at::Tensor(),
      .candidates = {get("candidate_keys"), get("candidate_occurrences"), get("candidate_last_step")}};
  if (here && !has_state) rows.state = at::empty({rows.known.keys.numel(), 0}, at::kFloat);
  tables.write_keys(table, rows);
}

embedding::HashedCounters sum_over_ranks(Group& group, const std::optional<embedding::HashedCounters>& own) {
  const embedding::HashedCounters from = own.value_or(embedding::HashedCounters());
  std::vector<double> values;
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
