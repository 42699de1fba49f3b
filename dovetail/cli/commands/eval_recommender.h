#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/train/run/stored_run.h"

namespace dovetail::cli {

struct RecommenderEvaluation {
  std::vector<std::string> files;  ///< files and globs to read; empty: the run's own files
  /// "train", "validation" or "all". Empty: "validation" for the run's own files, "all" for others.
  std::string split;
  std::string predictions;  ///< CSV file to write; empty: none is written
  int64_t max_rows = 0;     ///< maximum rows, from the first row on; 0: all rows
};

/// Scores rows by a stored recommender and measures how well it ranks. Columns, hashing and
/// statistics are the same as in its training. Adds to `result` and `rows`, the JSON and the table
/// of `dovetail eval`. All ranks call this together.
void evaluate_recommender(train::StoredRun stored, const RecommenderEvaluation& options,
                          nlohmann::ordered_json& result,
                          std::vector<std::vector<std::string>>& rows);

}  // namespace dovetail::cli
