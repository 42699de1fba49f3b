#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/train/run/stored_run.h"

namespace dovetail::cli {

struct RecommenderEvaluation {
  std::vector<std::string> files;  ///< and globs; empty: the run's own
  std::string split;        ///< train | validation | all; empty: validation, of other files all
  std::string predictions;  ///< CSV to write; empty: none
  int64_t max_rows = 0;     ///< the first ones; 0: all
};

/// Scores rows by a stored recommender, with the columns, hashing and statistics of its training,
/// and measures how well it ranks. Adds to the result of `dovetail eval` and its table. All ranks
/// together.
void evaluate_recommender(StoredRun stored, const RecommenderEvaluation& options,
                          nlohmann::ordered_json& result,
                          std::vector<std::vector<std::string>>& rows);

}  // namespace dovetail::cli
