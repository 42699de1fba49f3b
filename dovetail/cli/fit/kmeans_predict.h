#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>

#include "dovetail/cli/fit/table_options.h"

namespace dovetail::cli {

/// Options of `dovetail kmeans predict`.
struct PredictOptions {
  std::string run;      ///< folder of a run of `dovetail kmeans`
  std::string weights;  ///< column with the weights of the rows; empty: none
  std::string out;      ///< file for the labels; empty: predict-<name of the table>.csv in the run
};

/// Reads a table and finds the nearest centre of a run for each row. Writes a CSV file with columns
/// row, label and distance. Returns the result to print: numbers of rows, `counts` of rows per
/// cluster, inertia, seconds. Nodes and executors share the rows; node 0 returns the result, the
/// other nodes null.
///
/// The table must have the columns of the run. They match by name, in any order, or by place if the
/// table or the run has no names. Throws UserError if they differ, or if the folder has no run.
nlohmann::ordered_json predict_clusters(const TableOptions& table, const PredictOptions& options);

}  // namespace dovetail::cli
