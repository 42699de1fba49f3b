#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

/// Rows x (N, D) with a target for each row. Targets are numbers (N) float64 for linear regression,
/// and classes (N) int64 in [0, C) for logistic regression. Tasks `regression.moments`,
/// `linear.products`, `linear.residuals` and `logistic.gradient` (jobs/task.h) run on shards of the
/// rows.
class RegressionData {
 public:
  /// Indices of the tensors of table(). kWeights exists only if weights were given.
  enum Tensor : size_t { kX, kTarget, kWeights };

  /// `weights` (N) float64 are factors of the rows' terms in every sum. A row of weight 2 counts as
  /// two equal rows, a row of weight 0 as none. An undefined tensor means weight 1 for all rows.
  /// Throws UserError if `target` or `weights` has another shape or dtype, or a value that is not
  /// finite. Also throws if a weight is negative or all are 0. TableData explains x and `workers`.
  RegressionData(const at::Tensor& x, const at::Tensor& target,
                 std::shared_ptr<jobs::Workers> workers = nullptr, const at::Tensor& weights = {});

  const TableData& table() const { return table_; }
  /// Returns the weighted mean of each column, (D) float64.
  const at::Tensor& mean() const { return mean_; }
  /// Returns the weighted mean of the squares of each column less `mean`, (D) float64.
  const at::Tensor& variance() const { return variance_; }
  /// Returns the sum of the weights; N without weights.
  double weight() const { return weight_; }
  /// Returns the index of a row of the largest weight.
  int64_t heaviest() const { return heaviest_; }
  /// Returns e: table() holds float64 targets divided by 2^e, so that their squares neither
  /// overflow nor vanish. The largest magnitude is then in [1, 2).
  int exponent() const { return exponent_; }

 private:
  struct Checked {};
  RegressionData(const at::Tensor& x, const at::Tensor& target,
                 std::shared_ptr<jobs::Workers> workers, const at::Tensor& weights, Checked);

  int exponent_;
  TableData table_;
  at::Tensor mean_, variance_;
  double weight_;
  int64_t heaviest_ = 0;
};

/// Options of fit_linear.
struct LinearOptions {
  double l2 = 0;          ///< factor of the penalty |w|^2 on the coefficients w; at least 0
  bool intercept = true;  ///< false: the intercept is 0
};

/// Result of fit_linear. The prediction for a row x (D) is the scalar product of x and
/// `coefficients`, plus `intercept`.
struct LinearResult {
  at::Tensor coefficients;  ///< (D) float64
  double intercept = 0;
  /// Columns that depend linearly on previous columns. Their coefficients are 0.
  std::vector<int64_t> dependent;
  double r2 = 0;    ///< coefficient of determination on these rows; NaN if the target is constant
  double rmse = 0;  ///< root mean squared error on these rows
};

/// Fits least squares: finds coefficients w (D) and intercept b that minimize sum (y - x w - b)^2 +
/// l2 |w|^2. The sum is over the rows x (D) with their targets y, and with their weights. Solves
/// the normal equations in float64. Columns are centred at their means if there is an intercept.
/// Takes two passes over the rows. The result has the same bits for any number of threads.
LinearResult fit_linear(RegressionData& data, const LinearOptions& options = {});

/// Options of fit_logistic.
struct LogisticOptions {
  double l2 = 1;             ///< factor of the penalty |w|^2 / 2 on the coefficients w; at least 0
  int64_t iterations = 200;  ///< maximum number of iterations
  /// Stops when all elements of the gradient have at most this magnitude. The gradient belongs to
  /// the minimized sum, divided by N, as a function of the scaled coefficients (fit_logistic).
  double tolerance = 1e-6;
  bool intercept = true;  ///< false: all intercepts are 0
  /// To resume a stopped run: LogisticIteration::state of its last iteration. Empty: start from
  /// zero.
  std::vector<at::Tensor> state = {};
};

/// Progress of fit_logistic after one iteration.
struct LogisticIteration {
  int64_t iteration = 0;  ///< number of the iteration, from 1
  double loss = 0;        ///< minimized sum, divided by N: mean loss per row, plus the penalty
  double gradient = 0;    ///< largest magnitude in the gradient, as for LogisticOptions::tolerance
  double seconds = 0;     ///< duration of the iteration
  /// Tensors for LogisticOptions::state; empty if the run has converged.
  std::vector<at::Tensor> state = {};
};

/// Result of fit_logistic. M is the number of classes C, but M = 1 if there are two classes.
struct LogisticResult {
  /// Coefficients of each class, (M, D) float64. For two classes: the coefficients of class 1.
  at::Tensor coefficients;
  at::Tensor intercepts;   ///< intercepts (M) of the same classes
  double loss = 0;         ///< mean loss per row, without the penalty
  double accuracy = 0;     ///< weighted fraction of the rows whose class is predicted correctly
  int64_t iterations = 0;  ///< number of iterations
  bool converged = false;  ///< true if the tolerance was met, or no step reduces the loss further
};

/// Fits softmax regression with C = `classes` classes, at least two, by L-BFGS (Liu, Nocedal 1989).
/// Minimizes sum -log p(class of the row) + l2 |w|^2 / 2. Each term of the sum over the rows has
/// the factor of its row's weight. Intercepts are not penalized: w are the coefficients. N is the
/// sum of the weights. The search scales each column of x: it divides it by the root of (variance
/// of the column + 4 l2 / N). Without intercepts it takes the mean square instead of the variance.
/// Calls `report` after each iteration. The result has the same bits for any number of threads.
LogisticResult fit_logistic(RegressionData& data, int64_t classes,
                            const LogisticOptions& options = {},
                            const std::function<void(const LogisticIteration&)>& report = {});

}  // namespace dovetail::fit
