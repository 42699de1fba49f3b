#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

/// Rows x (N, D) with what is to be predicted of each: a number (N) float64 for linear regression,
/// a class (N) int64 in [0, C) for logistic. Tasks `linear.products`, `linear.residuals` and
/// `logistic.gradient` run on its shards.
class RegressionData {
 public:
  enum Tensor : size_t { kX, kTarget };

  /// UserError for a target that does not fit, or has values that are not finite.
  RegressionData(const at::Tensor& x, const at::Tensor& target,
                 std::shared_ptr<jobs::Workers> workers = nullptr);

  const TableData& table() const { return table_; }
  /// Numbers to predict are held divided by 2^exponent, so that their squares neither overflow nor
  /// vanish.
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
  std::vector<int64_t>
      dependent;  ///< columns that those before them determine: their coefficients are 0
  double r2 = 0;  ///< of the rows; NaN where the target is constant
  double rmse = 0;
};

/// Least squares: sum (y - x w - b)^2 + l2 |w|^2 is least, by the normal equations about the means
/// of the columns, in float64. Two passes over the rows. The same bits for any number of threads.
LinearResult fit_linear(RegressionData& data, double l2 = 0);

struct LogisticOptions {
  double l2 = 1;             ///< at least 0
  int64_t iterations = 200;  ///< at most
  double tolerance = 1e-6;  ///< ends when no element of the gradient of the mean is larger; columns
                            ///< over their deviation
  std::vector<at::Tensor> state =
      {};  ///< of the last iteration of a run that was stopped, which this one goes on with
};

struct LogisticIteration {
  int64_t iteration = 0;  ///< from 1
  double loss = 0;        ///< of a row, in the mean, and the penalty
  double gradient = 0;    ///< its largest element, as for the tolerance
  double seconds = 0;
  std::vector<at::Tensor> state = {};  ///< LogisticOptions::state; none where it converged
};

struct LogisticResult {
  at::Tensor
      coefficients;  ///< (M, D) float64: M = C, but 1 for two classes, which is that of class 1
  at::Tensor intercepts;  ///< (M)
  double loss = 0;        ///< of a row, in the mean, without the penalty
  double accuracy = 0;    ///< of the rows
  int64_t iterations = 0;
  bool converged = false;
};

/// Softmax regression on C classes, at least two: sum -log p(class of the row) + l2 |w|^2 / 2 is
/// least, the intercepts not in the penalty; by L-BFGS (Liu, Nocedal 1989) in columns divided by
/// their deviation, the root of variance + 4 l2 / N. `report` is called after each iteration. The
/// same bits for any number of threads.
LogisticResult fit_logistic(RegressionData& data, int64_t classes,
                            const LogisticOptions& options = {},
                            const std::function<void(const LogisticIteration&)>& report = {});

}  // namespace dovetail::fit
