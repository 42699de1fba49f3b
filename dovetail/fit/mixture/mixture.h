#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

/// Structure of the covariance matrix of a component.
enum class Covariance {
  kFull,      ///< any covariance
  kDiagonal,  ///< diagonal: columns are independent within a component
};
/// Parses "full" or "diag". Throws UserError for another name.
Covariance parse_covariance(std::string_view name);

/// A mixture of K normal distributions over D columns, float64.
struct Mixture {
  at::Tensor weights;      ///< (K), sum 1
  at::Tensor means;        ///< (K, D)
  at::Tensor covariances;  ///< (K, D, D), or (K, D) if they are diagonal
  /// Returns the number of free parameters, as counted by `bic` and `aic`.
  int64_t num_parameters() const;
};

struct MixtureOptions {
  int64_t iterations = 100;      ///< maximum number of iterations
  double tolerance = 1e-3;       ///< stops when the mean log-likelihood per row changes by less
  double regularization = 1e-6;  ///< added to every variance
  /// MixtureIteration::state of the last iteration of a stopped run, to resume it. Empty: start
  /// from the given mixture.
  std::vector<at::Tensor> state = {};
};

struct MixtureIteration {
  int64_t iteration = 0;      ///< from 1
  double log_likelihood = 0;  ///< mean per row, under the parameters before this iteration
  double seconds = 0;
  /// For MixtureOptions::state; empty if the run has converged.
  std::vector<at::Tensor> state = {};
};

struct MixtureResult {
  Mixture mixture;
  at::Tensor labels;          ///< (N) int32: most probable component of each row
  double log_likelihood = 0;  ///< mean per row
  double bic = 0, aic = 0;    ///< Schwarz 1978 and Akaike 1974, of all rows; less is better
  int64_t iterations = 0;
  bool converged = false;
};

/// Rows that a mixture models. Tasks `mixture.start` and `mixture.expect` run on its shards.
class MixtureData {
 public:
  enum Tensor : size_t { kX, kLabels };

  explicit MixtureData(const at::Tensor& x, std::shared_ptr<jobs::Workers> workers = nullptr);

  /// Returns the mixture in which component k describes the rows with label k; labels (N) int32 in
  /// [0, K). Sums are taken about points (K, D) near those rows, for example the centres of
  /// k-means. So no digits are lost, however far the components are from each other.
  Mixture of_labels(const at::Tensor& labels, const at::Tensor& points, Covariance covariance,
                    double regularization);

  /// Runs one step of expectation and maximization. Sets each label to the most probable component
  /// under `before`.
  struct Step {
    Mixture after;
    double log_likelihood = 0;  ///< mean per row, under `before`
  };
  Step step(const Mixture& before, double regularization);

  at::Tensor labels() const { return table_.tensor(kLabels); }
  int64_t rows() const { return table_.rows(); }
  int64_t columns() const { return table_.columns(); }

 private:
  TableData table_;
};

/// Fits a mixture by expectation and maximization (Dempster, Laird, Rubin 1977), beginning with
/// `start`. Stops at the tolerance or after the maximum number of iterations. Ignores `start` if it
/// resumes from a state. Throws UserError if a covariance is not positive definite. The result has
/// the same bits for any number of threads.
MixtureResult fit_mixture(MixtureData& data, const Mixture& start,
                          const MixtureOptions& options = {},
                          const std::function<void(const MixtureIteration&)>& report = {});

}  // namespace dovetail::fit
