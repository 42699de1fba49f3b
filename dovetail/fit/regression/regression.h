#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

/// Rows x (N, D) with a target for each row. Targets are numbers (N) float64 for linear regression,
/// and classes (N) int64 in [0, C) for logistic regression. Tasks `linear.products`,
/// `linear.residuals` and `logistic.gradient` (jobs/task.h) run on shards of the rows.
class RegressionData {
 public:
  /// Indices of the tensors of table().
  enum Tensor : size_t { kX, kTarget };

  /// Throws UserError if `target` has another shape or dtype, or a value that is not finite.
  /// TableData explains x and `workers`.
  RegressionData(const at::Tensor& x, const at::Tensor& target,
                 std::shared_ptr<jobs::Workers> workers = nullptr);

  const TableData& table() const { return table_; }
  /// Returns e: table() holds float64 targets divided by 2^e, so that their squares neither
  /// overflow nor vanish. The largest magnitude is then in [1, 2).
  int exponent() const { return exponent_; }

 private:
  struct Checked {};
  RegressionData(const at::Tensor& x, const at::Tensor& target,
                 std::shared_ptr<jobs::Workers> workers, Checked);

  int exponent_;
  TableData table_;
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
/// l2 |w|^2. The sum is over the rows x (D) with their targets y. Solves the normal equations in
/// float64, with columns centred at their means. Takes two passes over the rows. The result has the
/// same bits for any number of threads.
LinearResult fit_linear(RegressionData& data, double l2 = 0);

/// Options of fit_logistic.
struct LogisticOptions {
  double l2 = 1;             ///< factor of the penalty |w|^2 / 2 on the coefficients w; at least 0
  int64_t iterations = 200;  ///< maximum number of iterations
  /// Stops when all elements of the gradient have at most this magnitude. The gradient belongs to
  /// the minimized sum, divided by N, as a function of the scaled coefficients (fit_logistic).
  double tolerance = 1e-6;
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
  double accuracy = 0;     ///< fraction of the rows whose class is predicted correctly
  int64_t iterations = 0;  ///< number of iterations
  bool converged = false;  ///< true if the tolerance was met, or no step reduces the loss further
};

/// Fits softmax regression with C = `classes` classes, at least two, by L-BFGS (Liu, Nocedal 1989).
/// Minimizes sum -log p(class of the row) + l2 |w|^2 / 2, with the sum over the rows. w are all
/// coefficients; intercepts are not penalized. The search scales each column of x: it divides it by
/// the root of (variance of the column + 4 l2 / N). Calls `report` after each iteration. The result
/// has the same bits for any number of threads.
LogisticResult fit_logistic(RegressionData& data, int64_t classes,
                            const LogisticOptions& options = {},
                            const std::function<void(const LogisticIteration&)>& report = {});

}  // namespace dovetail::fit
