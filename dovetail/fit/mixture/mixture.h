#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

/// What the covariance of a component may be.
enum class Covariance {
  kFull,      ///< any
  kDiagonal,  ///< of columns that are independent within a component
};
/// "full", "diag"; UserError for another name.
Covariance parse_covariance(std::string_view name);

/// A mixture of K normal distributions over D columns, float64.
struct Mixture {
  at::Tensor weights;      ///< (K), sum 1
  at::Tensor means;        ///< (K, D)
  at::Tensor covariances;  ///< (K, D, D), or (K, D) where they are diagonal
  /// Numbers that the data decides.
  int64_t num_parameters() const;
};

struct MixtureOptions {
  int64_t iterations = 100;      ///< at most
  double tolerance = 1e-3;       ///< ends when the mean log-likelihood of a row changed by less
  double regularization = 1e-6;  ///< is added to every variance
  std::vector<at::Tensor> state =
      {};  ///< of the last iteration of a run that was stopped, which this one goes on with
};

struct MixtureIteration {
  int64_t iteration = 0;      ///< from 1
  double log_likelihood = 0;  ///< of a row, in the mean, under the parameters before it
  double seconds = 0;
  std::vector<at::Tensor> state = {};  ///< MixtureOptions::state; none where it converged
};

struct MixtureResult {
  Mixture mixture;
  at::Tensor labels;          ///< (N) int32: the component that most likely made the row
  double log_likelihood = 0;  ///< of a row, in the mean
  double bic = 0, aic = 0;    ///< less is better: of all rows, Schwarz 1978 and Akaike 1974
  int64_t iterations = 0;
  bool converged = false;
};

/// Rows to model. Tasks `mixture.start` and `mixture.expect` run on its shards.
class MixtureData {
 public:
  enum Tensor : size_t { kX, kLabels };

  explicit MixtureData(const at::Tensor& x, std::shared_ptr<jobs::Workers> workers = nullptr);

  /// The mixture whose components are the rows of each label (N) int32 in [0, K). Sums are taken
  /// about points (K, D) near those rows, such as the centres of k-means, which costs no digits
  /// however far they are from each other.
  Mixture of_labels(const at::Tensor& labels, const at::Tensor& points, Covariance covariance,
                    double regularization);

  /// One step of expectation and maximization; labels become those of `before`.
  struct Step {
    Mixture after;
    double log_likelihood = 0;  ///< of a row, in the mean, under `before`
  };
  Step step(const Mixture& before, double regularization);

  at::Tensor labels() const { return table_.tensor(kLabels); }
  int64_t rows() const { return table_.rows(); }
  int64_t columns() const { return table_.columns(); }

 private:
  TableData table_;
};

/// Expectation and maximization (Dempster, Laird, Rubin 1977) from a mixture on. Ends at the
/// tolerance or after the iterations. Does not look at `start` where it goes on from a state.
/// UserError when a covariance is not positive. The same bits for any number of threads.
MixtureResult fit_mixture(MixtureData& data, const Mixture& start,
                          const MixtureOptions& options = {},
                          const std::function<void(const MixtureIteration&)>& report = {});

}  // namespace dovetail::fit
