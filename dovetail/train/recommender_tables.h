#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "dovetail/embedding/distributed.h"

namespace dovetail {

/// What tables are called in checkpoints and exports: "embedding.<table>.weight" (rows as they are stored) and
/// "embedding.<table>.state"; without a fixed vocabulary also ".keys", ".occurrences" and ".last_step" of the rows, and
/// ".candidate_keys", ".candidate_occurrences", ".candidate_last_step".
constexpr std::string_view kTablePrefix = "embedding.";
std::string table_tensor(const std::string& table, std::string_view part);

/// Throws UserError unless `tensors` are the rows and the state of these tables.
void check_tables(const embedding::PackSpec& spec, std::map<std::string, at::Tensor> tensors);

/// Adds a table's tensors where `here`, on rank 0, and takes them from there; all ranks together.
void add_table(const embedding::DistributedTables& tables, int64_t table, bool here,
               std::map<std::string, at::Tensor>& tensors);
void restore_table(embedding::DistributedTables& tables, int64_t table, bool here,
                   const std::map<std::string, at::Tensor>& tensors);

/// All ranks together.
embedding::HashedCounters sum_over_ranks(Group& group, const std::optional<embedding::HashedCounters>& own);
/// A line of tables.jsonl: "rows" and "candidates" there are, and what became of keys since `before`.
nlohmann::ordered_json counters_json(int64_t step, const embedding::HashedCounters& now,
                                     const embedding::HashedCounters& before);
/// For the log, at the end of a run.
std::string counters_line(const embedding::HashedCounters& counters);

}  // namespace dovetail
