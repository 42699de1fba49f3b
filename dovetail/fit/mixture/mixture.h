#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

/// Structure of the covariance matrix of a component, one of the normal distributions of a mixture.
enum class Covariance {
  kFull,       ///< any covariance
  kDiagonal,   ///< diagonal: columns are independent within a component
  kTied,       ///< one covariance matrix for all components
  kSpherical,  ///< one variance for all columns of a component
};
/// Parses "full", "diag", "tied" or "spherical". Throws UserError for another name.
Covariance parse_covariance(std::string_view name);

/// Returns the shape of Mixture::covariances of `num` components over `dim` columns.
std::vector<int64_t> covariance_shape(Covariance structure, int64_t num, int64_t dim);
/// Returns `structure` as a parameter of tasks, () int64, and back.
at::Tensor covariance_parameter(Covariance structure);
Covariance covariance_of(const at::Tensor& parameter);

/// Mixture of K normal distributions (components) over D columns. All tensors are float64.
struct Mixture {
  at::Tensor weights;  ///< (K), sum 1
  at::Tensor means;    ///< (K, D)
  /// Shape: (K, D, D) full, (K, D) diagonal, (D, D) tied, (K) spherical.
  at::Tensor covariances;
  Covariance structure = Covariance::kFull;
  /// Returns the number of free parameters, for MixtureResult::bic and MixtureResult::aic.
  int64_t num_parameters() const;
};

/// Returns a root of the inverse of each covariance, in the shape of Mixture::covariances. It is
/// the upper triangular U with U U^T = inverse, or 1 / sqrt(variance). Throws UserError if a
/// covariance is not positive definite.
at::Tensor precision_roots(const Mixture& mixture);

/// Returns log(weight) + log density of each component at each row of x, (N, K) float64. x (N, D)
/// is as for MixtureData. `roots` is the result of precision_roots(mixture). Runs the task
/// `mixture.scores`.
at::Tensor log_densities(const at::Tensor& x, const Mixture& mixture, const at::Tensor& roots);

/// Options of fit_mixture.
struct MixtureOptions {
  int64_t iterations = 100;      ///< maximum number of iterations
  double tolerance = 1e-3;       ///< stops when the mean log-likelihood per row changes by less
  double regularization = 1e-6;  ///< number added to each variance (diagonal of the covariances)
  /// To resume a stopped run: MixtureIteration::state of its last iteration. Empty: start from the
  /// given mixture.
  std::vector<at::Tensor> state = {};
};

/// Progress of fit_mixture after one iteration.
struct MixtureIteration {
  int64_t iteration = 0;  ///< number of the iteration, from 1
  /// Mean log-likelihood per row, under the mixture before this iteration.
  double log_likelihood = 0;
  double seconds = 0;  ///< duration of the iteration
  /// Tensors for MixtureOptions::state; empty if the run has converged.
  std::vector<at::Tensor> state = {};
};

/// Result of fit_mixture.
struct MixtureResult {
  Mixture mixture;
  at::Tensor labels;          ///< (N) int32: most probable component of each row
  double log_likelihood = 0;  ///< mean log-likelihood per row, under `mixture`
  double lower_bound = 0;  ///< mean log-likelihood per row, under the mixture before the last step
  /// bic: Bayesian information criterion (Schwarz 1978). aic: Akaike information criterion (1974).
  /// Both are over all rows; lower is better.
  double bic = 0, aic = 0;
  int64_t iterations = 0;  ///< number of iterations
  bool converged = false;  ///< true if it stopped at the tolerance
};

/// Rows x (N, D) that a mixture models, with a label for each row: the index of a component. Tasks
/// `mixture.start` and `mixture.expect` (jobs/task.h) run on shards of the rows.
class MixtureData {
 public:
  /// Indices of the tensors of the table (TableData).
  enum Tensor : size_t { kX, kLabels };

  /// TableData explains x, float32 or float64, and `workers`.
  explicit MixtureData(const at::Tensor& x, std::shared_ptr<jobs::Workers> workers = nullptr);

  /// Returns the mixture whose component k has the mean and covariance of the rows with label k.
  /// `labels` (N) int32 are in [0, K). points[k] of `points` (K, D) is near the rows with label k,
  /// for example a centre of k-means. It is subtracted from the rows before they are summed. So no
  /// digits are lost, however far the components are from each other.
  Mixture of_labels(const at::Tensor& labels, const at::Tensor& points, Covariance covariance,
                    double regularization);

  struct Step {
    Mixture after;              ///< mixture after the step
    double log_likelihood = 0;  ///< mean log-likelihood per row, under the mixture before the step
  };
  /// Runs one step of expectation and maximization from mixture `before`. Sets the label of each
  /// row to its most probable component under `before`.
  Step step(const Mixture& before, double regularization);

  at::Tensor labels() const { return table_.tensor(kLabels); }
  int64_t rows() const { return table_.rows(); }
  int64_t columns() const { return table_.columns(); }
  /// Returns the mean of each column, (D) float64.
  const at::Tensor& mean() const { return table_.mean(); }

 private:
  TableData table_;
};

/// Fits a mixture by expectation and maximization (Dempster, Laird, Rubin 1977), beginning with
/// `start`. If options.state is not empty, resumes from it and reads only `start.structure`. Stops
/// at the tolerance or after the maximum number of iterations. Calls `report` after each iteration.
/// Throws UserError if a covariance is not positive definite. The result has the same bits for any
/// number of threads.
MixtureResult fit_mixture(MixtureData& data, const Mixture& start,
                          const MixtureOptions& options = {},
                          const std::function<void(const MixtureIteration&)>& report = {});

}  // namespace dovetail::fit
