#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/cli/table_options.h"
#include "dovetail/train/run_folder.h"

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
  std::shared_ptr<hybrid::Runtime> runtime;
  const RunFolder& folder;
  std::string title, where, command;
};

/// What a model writes into its folder, and what there is to say about it.
struct FitOutcome {
  nlohmann::ordered_json& result;  ///< of --json; is added to
  std::string verdict;
  std::vector<std::pair<std::string, std::string>> figures;
};

void fit_gmm(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_linear_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_pca(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_logistic_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome);

}  // namespace dovetail::cli
