#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

/// Rows x (N, D) with a target for each. The target is a number (N) float64 for linear regression,
/// and a class (N) int64 in [0, C) for logistic regression. Tasks `linear.products`,
/// `linear.residuals` and `logistic.gradient` run on its shards.
class RegressionData {
 public:
  enum Tensor : size_t { kX, kTarget };

  /// Throws UserError for a target of another shape or dtype, or with values that are not finite.
  RegressionData(const at::Tensor& x, const at::Tensor& target,
                 std::shared_ptr<jobs::Workers> workers = nullptr);

  const TableData& table() const { return table_; }
  /// Returns the exponent of the scale: float64 targets are stored divided by 2^exponent. So their
  /// squares neither overflow nor vanish.
  int exponent() const { return exponent_; }

 private:
  struct Checked {};
  RegressionData(const at::Tensor& x, const at::Tensor& target,
                 std::shared_ptr<jobs::Workers> workers, Checked);

  int exponent_;
  TableData table_;
};

struct LinearResult {
  at::Tensor coefficients;  ///< (D) float64
  double intercept = 0;     ///< the prediction is x coefficients + intercept
  /// Columns that depend linearly on previous columns. Their coefficients are 0.
  std::vector<int64_t> dependent;
  double r2 = 0;  ///< coefficient of determination of these rows; NaN if the target is constant
  double rmse = 0;
};

/// Fits least squares: minimizes sum (y - x w - b)^2 + l2 |w|^2. Solves the normal equations in
/// float64, with columns centred at their means. Takes two passes over the rows. The result has the
/// same bits for any number of threads.
LinearResult fit_linear(RegressionData& data, double l2 = 0);

struct LogisticOptions {
  double l2 = 1;             ///< at least 0
  int64_t iterations = 200;  ///< maximum number of iterations
  /// Stops when no element of the gradient of the mean loss is larger, for columns divided by their
  /// deviation.
  double tolerance = 1e-6;
  /// LogisticIteration::state of the last iteration of a stopped run, to resume it. Empty: start
  /// from zero.
  std::vector<at::Tensor> state = {};
};

struct LogisticIteration {
  int64_t iteration = 0;  ///< from 1
  double loss = 0;        ///< mean loss per row, plus the penalty
  double gradient = 0;    ///< largest element of the gradient, as for `tolerance`
  double seconds = 0;
  /// For LogisticOptions::state; empty if the run has converged.
  std::vector<at::Tensor> state = {};
};

struct LogisticResult {
  /// (M, D) float64, M = C. Two classes have M = 1: the coefficients of class 1.
  at::Tensor coefficients;
  at::Tensor intercepts;  ///< (M)
  double loss = 0;        ///< mean loss per row, without the penalty
  double accuracy = 0;    ///< fraction of the rows whose class is predicted
  int64_t iterations = 0;
  bool converged = false;
};

/// Fits softmax regression with C classes, at least two, by L-BFGS (Liu, Nocedal 1989). Minimizes
/// sum -log p(class of the row) + l2 |w|^2 / 2; intercepts are not penalized. Columns are divided
/// by their deviation, the root of variance + 4 l2 / N. Calls `report` after each iteration. The
/// result has the same bits for any number of threads.
LogisticResult fit_logistic(RegressionData& data, int64_t classes,
                            const LogisticOptions& options = {},
                            const std::function<void(const LogisticIteration&)>& report = {});

}  // namespace dovetail::fit
