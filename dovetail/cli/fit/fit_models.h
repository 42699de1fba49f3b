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

/// The options of `dovetail fit`. Those that a model has no use for are never given.
struct FitOptions {
  std::string init = "k-means++", covariance = "full", target;
  int64_t k = 0, components = 0, iterations = 0, seed = 0;
  double tolerance = 0, l2 = 0, regularization = 0;
};

/// The rows, who computes, and where results go.
struct FitContext {
  const Matrix& matrix;
  std::shared_ptr<jobs::Workers> workers;
  JobState& state;
  bool shows;  ///< progress: this is node 0
  std::filesystem::path folder;
  std::string where, command;
};

/// What there is to say about a model, and what writes it into its folder, which node 0 alone does.
/// All else is done by all nodes.
struct FitOutcome {
  nlohmann::ordered_json& result;  ///< of --json; is added to
  std::string verdict;
  std::vector<std::pair<std::string, std::string>> figures;
  std::function<void(const RunFolder&)> write;
};

/// "iterations.jsonl": the lines of a job under these names, its steps from 1 on.
void write_iterations(const RunFolder& folder, const std::vector<std::vector<double>>& lines,
                      const std::vector<const char*>& names);

void fit_gmm(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_linear_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_pca(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_logistic_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome);

}  // namespace dovetail::cli
