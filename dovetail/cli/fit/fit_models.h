#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/cli/fit/fit_page.h"
#include "dovetail/cli/fit/job_state.h"
#include "dovetail/cli/fit/table_options.h"
#include "dovetail/train/run/folder.h"

namespace dovetail::cli {

/// Options of `dovetail fit`, named as on the command line. The parser refuses an option that the
/// chosen model does not have.
///
/// - init: initial centres of k-means, whose clusters start a mixture; as for `dovetail kmeans`
/// - covariance: structure of a mixture's covariances (fit::parse_covariance)
/// - target: column to predict
/// - k: number of components of a mixture
/// - components: number of principal components
/// - solver: method for principal components (parse_principal_solver)
/// - iterations: maximum number of iterations
/// - tolerance: measure of convergence below which iterations stop
/// - l2: coefficient of the squared norm of a regression's weights
/// - regularization: value added to each variance of a mixture
struct FitOptions {
  std::string init = "k-means++", covariance = "full", target, solver = "auto";
  int64_t k = 0, components = 0, iterations = 0, seed = 0;
  double tolerance = 0, l2 = 0, regularization = 0;
};

/// Input of a fit. The job may run on several nodes (processes, started by torchrun).
struct FitContext {
  const data::Matrix& matrix;  ///< table to fit, as MatrixType::kExact
  /// Objects that run the tasks; null: threads of this process.
  std::shared_ptr<jobs::Workers> workers;
  JobState& state;  ///< saved progress, from which a stopped job resumes
  bool shows;       ///< true on node 0, which shows the progress
};

/// Results of a fit, to be filled by the functions below. All nodes compute them.
struct FitOutcome {
  nlohmann::ordered_json& result;  ///< output of --json; the fit adds its values
  std::string verdict;             ///< summary in one sentence
  /// Figures to print, as label and value.
  std::vector<std::pair<std::string, std::string>> figures;
  /// Cards of the report, and their sections. `sections` is called once, on node 0.
  std::vector<report::Tile> tiles;
  std::function<std::vector<PageSection>()> sections;
  /// Writes the model into the run's folder. Only node 0 calls it.
  std::function<void(const train::RunFolder&)> write;
};

/// Writes iterations.jsonl, with one JSON object per iteration. `lines` holds the values of each
/// iteration (JobState::lines), and `names` their keys. Key "step" counts iterations from 1.
void write_iterations(const train::RunFolder& folder, const std::vector<std::vector<double>>& lines,
                      const std::vector<const char*>& names);

/// Fit one model: a mixture of normal distributions, linear regression, principal components or
/// logistic regression. Each fills `outcome`.
void fit_gmm(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_linear_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_pca(const FitOptions& options, const FitContext& context, FitOutcome& outcome);
void fit_logistic_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome);

}  // namespace dovetail::cli
