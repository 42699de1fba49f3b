#include "dovetail/fit/regression/regression.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/fit/regression/lbfgs.h"
#include "dovetail/fit/rows/dense.h"
#include "dovetail/fit/rows/rows.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::fit {
namespace {

/// Relative pivot below which a column counts as dependent on previous columns. Float32 data has
/// seven digits.
constexpr double kDependent = 1e-12;

at::Tensor checked_target(const at::Tensor& x, const at::Tensor& target) {
  const bool fits = target.dim() == 1 && target.size(0) == x.size(0) && target.device().is_cpu() &&
                    (target.scalar_type() == at::kDouble || target.scalar_type() == at::kLong);
  user_check(fits, "regression: the target must be {} float64 numbers or int64 classes, but is {}",
             x.size(0), ops::describe(target));
  user_check(at::isfinite(target).all().item<bool>(),
             "regression: a value of the target is not finite");
  return target.contiguous();
}

std::vector<at::Tensor> with_weights(const at::Tensor& x, at::Tensor target,
                                     const at::Tensor& weights) {
  if (!weights.defined()) return {std::move(target)};
  user_check(weights.dim() == 1 && weights.size(0) == x.size(0) && weights.device().is_cpu() &&
                 weights.scalar_type() == at::kDouble,
             "regression: the weights must be {} float64 numbers, but are {}", x.size(0),
             ops::describe(weights));
  const double sum = weights.sum().item<double>();
  user_check((weights >= 0).all().item<bool>() && std::isfinite(sum) && sum > 0,
             "regression: weights must be finite, at least 0, and not all 0");
  return {std::move(target), weights.contiguous()};
}

/// Returns the exponent e for which the largest |number| / 2^e is in [1, 2). Returns 0 for classes,
/// and if all numbers are 0.
int exponent_of(const at::Tensor& target) {
  if (target.scalar_type() != at::kDouble || target.numel() == 0) return 0;
  const double largest = target.abs().max().item<double>();
  return largest > 0 ? std::ilogb(largest) : 0;
}

/// Returns numbers times 2^exponent. Keeps all bits, except in subnormal results.
at::Tensor scaled(const at::Tensor& numbers, int exponent) {
  if (exponent == 0) return numbers;
  at::Tensor result = at::empty_like(numbers);
  std::transform(numbers.const_data_ptr<double>(),
                 numbers.const_data_ptr<double>() + numbers.numel(),
                 result.mutable_data_ptr<double>(),
                 [&](double number) { return std::ldexp(number, exponent); });
  return result;
}

void check_dtype(const RegressionData& data, at::ScalarType type, const char* what) {
  const at::Tensor target = data.table().tensor(RegressionData::kTarget);
  user_check(target.scalar_type() == type, "regression: the target must be {}, but is {}", what,
             ops::describe(target));
}

/// Returns the point (D) that is subtracted from the rows.
template <class Options>
at::Tensor centre_of(const RegressionData& data, const Options& options) {
  return options.intercept ? data.mean() : at::zeros_like(data.mean());
}

/// Returns the scale of each column (D), by which coefficients are divided. It makes the second
/// derivatives of the objective about equal. A loss has at most a quarter of the variance as second
/// derivative, and the penalty adds l2 / rows.
at::Tensor deviations(const RegressionData& data, const LogisticOptions& options) {
  at::Tensor square = data.variance() + 4 * options.l2 / data.weight();
  if (!options.intercept) square = square + data.mean().square();
  return at::where(square > 0, square.sqrt(), 1.0);
}

}  // namespace

RegressionData::RegressionData(const at::Tensor& x, const at::Tensor& target,
                               std::shared_ptr<jobs::Workers> workers, const at::Tensor& weights)
    : RegressionData(check_rows("regression", x, /*takes_double=*/true), checked_target(x, target),
                     std::move(workers), weights, Checked{}) {}

RegressionData::RegressionData(const at::Tensor& x, const at::Tensor& target,
                               std::shared_ptr<jobs::Workers> workers, const at::Tensor& weights,
                               Checked)
    : exponent_(exponent_of(target)),
      table_("regression", x, std::move(workers),
             with_weights(x, scaled(target, -exponent_), weights)),
      mean_(table_.mean()),
      variance_(table_.variance()),
      weight_(static_cast<double>(table_.rows())) {
  if (!weights.defined()) return;
  heaviest_ = weights.argmax().item<int64_t>();
  // Two passes: rows of weight 0 may lie far from all others.
  const jobs::Partial near = table_.run("regression.moments", {table_.mean()});
  weight_ = near.weight;
  const at::Tensor point = table_.mean() + near.tensors[0][0] / weight_;
  const at::Tensor moments = table_.run("regression.moments", {point}).tensors[0] / weight_;
  mean_ = point + moments[0];
  variance_ = (moments[1] - moments[0].square()).clamp_min(0);
}

LinearResult fit_linear(RegressionData& data, const LinearOptions& options) {
  check_dtype(data, at::kDouble, "float64 numbers");
  user_check(options.l2 >= 0 && std::isfinite(options.l2), "regression: l2 is {}", options.l2);
  const TableData& table = data.table();
  const at::Tensor centre = centre_of(data, options);
  // Sums of z = x - centre and v = y - y_0. If the centre is the mean, the sum of z is small but
  // not zero, by rounding. The sum of v depends on the choice of y_0.
  const at::Tensor near = options.intercept
                              ? table.tensor(RegressionData::kTarget)[data.heaviest()].clone()
                              : at::scalar_tensor(0, at::kDouble);
  const jobs::Partial sums = table.run("linear.products", {centre, near});
  const double rows = sums.weight;
  const double v_mean = sums.tensors[3][0].item<double>() / rows;
  // Means that the normal equations take out: 0 if there is no intercept.
  const double fitted = options.intercept ? 1 : 0;
  const at::Tensor z = sums.tensors[2] * (fitted / rows);
  const at::Tensor squares = sums.tensors[0] - rows * z.unsqueeze(1) * z;
  at::Tensor right = sums.tensors[1] - rows * v_mean * z;
  squares.diagonal().add_(options.l2);
  const Cholesky factor = cholesky(squares, kDependent);
  LinearResult result{.coefficients = {}, .dependent = factor.dependent};
  const auto zero_dependent = [&](const at::Tensor& x) {
    for (const int64_t column : factor.dependent) x[column].zero_();
  };
  zero_dependent(right);
  const at::Tensor inverse = inverse_of_lower(factor.lower);
  result.coefficients = product(inverse.t().contiguous(), product(inverse, right));
  zero_dependent(result.coefficients);
  const double constant =
      near.item<double>() + fitted * v_mean - sum_of_products(z, result.coefficients);
  result.intercept = constant - sum_of_products(centre, result.coefficients);
  const double unexplained =
      table
          .run("linear.residuals",
               {centre, result.coefficients, at::scalar_tensor(constant, at::kDouble)})
          .tensors[0]
          .item<double>();
  const double all = sums.tensors[3][1].item<double>() - rows * v_mean * v_mean;
  result.r2 = all > 0 ? 1 - unexplained / all : std::numeric_limits<double>::quiet_NaN();
  result.coefficients = scaled(result.coefficients, data.exponent());
  result.intercept = std::ldexp(result.intercept, data.exponent());
  result.rmse = std::ldexp(std::sqrt(unexplained / rows), data.exponent());
  return result;
}

LogisticResult fit_logistic(RegressionData& data, int64_t classes, const LogisticOptions& options,
                            const std::function<void(const LogisticIteration&)>& report) {
  check_dtype(data, at::kLong, "int64 classes");
  user_check(classes >= 2, "regression: {} classes; there must be at least 2", classes);
  user_check(options.l2 >= 0 && options.iterations > 0 && options.tolerance >= 0,
             "regression: l2 {}, {} iterations and tolerance {}", options.l2, options.iterations,
             options.tolerance);
  const TableData& table = data.table();
  const at::Tensor target = table.tensor(RegressionData::kTarget);
  user_check((target >= 0).logical_and(target < classes).all().item<bool>(),
             "regression: a class is not in [0, {})", classes);
  const int64_t dim = table.columns(), outputs = classes == 2 ? 1 : classes;
  const double rows = data.weight();
  const at::Tensor scale = deviations(data, options), centre = centre_of(data, options);
  // Point of the search: `outputs` rows with D coefficients, for columns of mean 0 and deviation 1,
  // and an intercept.
  const auto coefficients = [&](const at::Tensor& point) {
    return (point.narrow(1, 0, dim) / scale).contiguous();
  };
  const auto evaluate = [&](const at::Tensor& point) {
    return table.run("logistic.gradient",
                     {coefficients(point), point.select(1, dim).contiguous(), centre});
  };
  const auto slope = [&](const at::Tensor& point) {
    const jobs::Partial sums = evaluate(point);
    const at::Tensor w = coefficients(point);
    at::Tensor gradient = sums.tensors[0].clone();
    gradient.narrow(1, 0, dim).add_(w, options.l2).div_(scale);
    if (!options.intercept) gradient.select(1, dim).zero_();  // so they stay 0
    return Slope{
        .value = (sums.tensors[1].item<double>() + 0.5 * options.l2 * sum_of_products(w, w)) / rows,
        .gradient = gradient / rows};
  };
  LogisticResult result;
  std::optional<Lbfgs> search;
  if (options.state.empty()) {
    search.emplace(slope, at::zeros({outputs, dim + 1}, at::kDouble));
  } else {
    result.iterations = options.state[0].item<int64_t>();
    search.emplace(slope, std::vector<at::Tensor>(options.state.begin() + 1, options.state.end()));
  }
  const auto steepest = [&] { return search->slope().gradient.abs().max().item<double>(); };
  result.converged = steepest() <= options.tolerance;
  while (!result.converged && result.iterations < options.iterations) {
    const double begin = now_seconds();
    const bool moved = search->step();
    ++result.iterations;
    result.converged = !moved || steepest() <= options.tolerance;
    if (!report) continue;
    LogisticIteration line{.iteration = result.iterations,
                           .loss = search->slope().value,
                           .gradient = steepest(),
                           .seconds = now_seconds() - begin};
    if (!result.converged) {
      line.state = search->state();
      line.state.insert(line.state.begin(), at::scalar_tensor(result.iterations, at::kLong));
    }
    report(line);
  }
  const jobs::Partial last = evaluate(search->point());
  result.coefficients = coefficients(search->point());
  result.intercepts = search->point().select(1, dim) - product(result.coefficients, centre);
  result.loss = last.tensors[1].item<double>() / rows;
  result.accuracy = last.tensors[2].item<double>() / rows;
  return result;
}

}  // namespace dovetail::fit
