#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/cli/fit/job_state.h"
#include "dovetail/cli/fit/table_options.h"
#include "dovetail/train/run/folder.h"

namespace dovetail::cli {

/// Options of `dovetail fit`. Options that a model does not use are never given.
struct FitOptions {
  std::string init = "k-means++", covariance = "full", target;
  int64_t k = 0, components = 0, iterations = 0, seed = 0;
  double tolerance = 0, l2 = 0, regularization = 0;
};

/// Input of a fit: rows, workers, saved state, and the folder for results.
struct FitContext {
  const data::Matrix& matrix;
  std::shared_ptr<jobs::Workers> workers;
  JobState& state;
  bool shows;  ///< true on node 0, which shows the progress
  std::filesystem::path folder;
  std::string where, command;
};

/// Results of a fit. All nodes compute them. Only node 0 calls `write`, which writes the model into
/// its folder.
struct FitOutcome {
  nlohmann::ordered_json& result;  ///< result of --json, to which the fit adds
  std::string verdict;
  std::vector<std::pair<std::string, std::string>> figures;
  std::function<void(const train::RunFolder&)> write;
};

/// Writes iterations.jsonl: `lines` of a job, with their values under `names`. Steps count from 1.
void write_iterations(const train::RunFolder& folder, const std::vector<std::vector<double>>& lines,
                      const std::vector<const char*>& names);

void fit_gmm(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_linear_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_pca(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_logistic_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome);

}  // namespace dovetail::cli
