#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/train/run/stored_run.h"

namespace dovetail::cli {

/// Options of `dovetail eval` for a recommender model.
struct RecommenderEvaluation {
  std::vector<std::string> files;  ///< files and globs to read; empty: the run's training files
  /// Part of the rows: "train", "validation" or "all". Empty: "validation" if `files` is empty,
  /// else "all".
  std::string split;
  std::string precision;    ///< "float32" or "bf16"; empty: as the run trained
  std::string predictions;  ///< CSV file for the score of each row; empty: none is written
  int64_t max_rows = 0;  ///< maximum number of rows to score, beginning with the first row; 0: all
};

/// Scores rows with the recommender of a checkpoint, and measures how well it ranks them. Columns,
/// hashing and statistics are the same as in the training. Adds the measures to the output of
/// `dovetail eval`: to `result` as JSON, and to `rows` as lines of a table. All ranks call this
/// together.
void evaluate_recommender(train::StoredRun stored, const RecommenderEvaluation& options,
                          nlohmann::ordered_json& result,
                          std::vector<std::vector<std::string>>& rows);

}  // namespace dovetail::cli
