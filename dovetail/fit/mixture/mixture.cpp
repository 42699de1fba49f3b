#include "dovetail/fit/mixture/mixture.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/base/trace.h"
#include "dovetail/fit/rows/dense.h"
#include "dovetail/fit/rows/rows.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::fit {
namespace {

bool is_diagonal(const Mixture& mixture) { return mixture.covariances.dim() == 2; }

[[noreturn]] void refuse_covariance(int64_t component) {
  throw UserError(fmt::format("mixture: the covariance of component {} is not positive", component),
                  "its rows lie in fewer dimensions than there are columns: raise the "
                  "regularization, use fewer components, or diagonal covariances");
}

/// Returns roots and constants of all components. A root is the matrix U (D, D) with U U^T =
/// inverse of the covariance. For diagonal covariances it is the vector (D) of 1 / sqrt(variance).
/// Constants (K) are log(weight) - log|covariance| / 2 - D log(2 pi) / 2.
std::pair<at::Tensor, at::Tensor> precisions(const Mixture& mixture) {
  const int64_t num = mixture.means.size(0), dim = mixture.means.size(1);
  at::Tensor roots = at::empty_like(mixture.covariances);
  at::Tensor constants =
      at::log(mixture.weights) - 0.5 * static_cast<double>(dim) * std::log(2 * M_PI);
  for (int64_t k = 0; k < num; ++k) {
    const at::Tensor covariance = mixture.covariances[k];
    at::Tensor diagonal;
    if (is_diagonal(mixture)) {
      if (!(covariance > 0).all().item<bool>()) refuse_covariance(k);
      roots[k].copy_(diagonal = covariance.rsqrt());
    } else {
      const Cholesky factor = cholesky(covariance, std::numeric_limits<double>::epsilon());
      if (!factor.dependent.empty()) refuse_covariance(k);
      const at::Tensor inverse = inverse_of_lower(factor.lower);
      roots[k].copy_(inverse.t());
      diagonal = inverse.diagonal();
    }
    double log_det = 0;
    for (int64_t p = 0; p < dim; ++p) log_det += std::log(diagonal[p].item<double>());
    constants[k].add_(log_det);
  }
  return {roots, constants};
}

/// Returns the mixture of maximum likelihood. With responsibilities r, `sums` holds: sum r (K), sum
/// r (x - mean) (K, D), sum r (x - mean)(x - mean)^T. `means` are the means of these differences.
Mixture maximize(const std::vector<at::Tensor>& sums, const at::Tensor& means,
                 double regularization) {
  // A component without rows keeps its mean and gets no weight.
  const at::Tensor counts = sums[0] + 10 * std::numeric_limits<double>::epsilon();
  const at::Tensor shift = sums[1] / counts.unsqueeze(1);
  Mixture after{
      .weights = counts / counts.sum().item<double>(), .means = means + shift, .covariances = {}};
  if (sums[2].dim() == 2) {
    after.covariances =
        (sums[2] / counts.unsqueeze(1) - shift.square()).clamp_min(0) + regularization;
  } else {
    after.covariances = sums[2] / counts.view({-1, 1, 1}) - shift.unsqueeze(2) * shift.unsqueeze(1);
    after.covariances.diagonal(0, 1, 2).clamp_min_(0).add_(regularization);
  }
  return after;
}

void check_mixture(const Mixture& mixture, int64_t columns) {
  const int64_t num = mixture.means.size(0);
  const bool full = mixture.covariances.dim() == 3;
  user_check(mixture.means.dim() == 2 && mixture.means.size(1) == columns &&
                 mixture.weights.dim() == 1 && mixture.weights.size(0) == num &&
                 mixture.covariances.size(0) == num && mixture.covariances.size(1) == columns &&
                 (!full || mixture.covariances.size(2) == columns),
             "mixture: weights {}, means {} and covariances {} are no mixture over {} columns",
             ops::describe(mixture.weights), ops::describe(mixture.means),
             ops::describe(mixture.covariances), columns);
}

Mixture as_double(const Mixture& mixture) {
  return {.weights = mixture.weights.to(at::kDouble).contiguous(),
          .means = mixture.means.to(at::kDouble).contiguous(),
          .covariances = mixture.covariances.to(at::kDouble).contiguous()};
}

}  // namespace

Covariance parse_covariance(std::string_view name) {
  constexpr std::array<std::string_view, 2> kNames = {"full", "diag"};
  return parse_enum<Covariance>("mixture", "covariance", name, kNames);
}

int64_t Mixture::num_parameters() const {
  const int64_t num = means.size(0), dim = means.size(1);
  return num - 1 + num * dim + num * (covariances.dim() == 2 ? dim : dim * (dim + 1) / 2);
}

MixtureData::MixtureData(const at::Tensor& x, std::shared_ptr<jobs::Workers> workers)
    : table_("mixture", check_rows("mixture", x), std::move(workers),
             {at::zeros({x.size(0)}, at::kInt)}) {}

Mixture MixtureData::of_labels(const at::Tensor& labels, const at::Tensor& points,
                               Covariance covariance, double regularization) {
  user_check(points.dim() == 2 && points.size(0) > 0 && points.size(1) == columns(),
             "mixture: points must be a matrix of {} columns, but are {}", columns(),
             ops::describe(points));
  user_check(labels.dim() == 1 && labels.size(0) == rows() && labels.scalar_type() == at::kInt &&
                 (labels >= 0).logical_and(labels < points.size(0)).all().item<bool>(),
             "mixture: labels must be {} int32 in [0, {})", rows(), points.size(0));
  table_.put(kLabels, labels.clone());
  const at::Tensor around = points.to(at::kDouble).contiguous();
  const jobs::Partial sums = table_.run(
      "mixture.start", {around, at::scalar_tensor(covariance == Covariance::kFull, at::kBool)});
  return maximize(sums.tensors, around, regularization);
}

MixtureData::Step MixtureData::step(const Mixture& before, double regularization) {
  const auto [roots, constants] = precisions(before);
  const jobs::Partial sums = table_.run("mixture.expect", {before.means, roots, constants});
  return {.after = maximize(sums.tensors, before.means, regularization),
          .log_likelihood = sums.tensors[3].item<double>() / sums.weight};
}

MixtureResult fit_mixture(MixtureData& data, const Mixture& start, const MixtureOptions& options,
                          const std::function<void(const MixtureIteration&)>& report) {
  user_check(options.iterations > 0, "mixture: {} iterations; there must be at least 1",
             options.iterations);
  user_check(options.tolerance >= 0 && options.regularization >= 0,
             "mixture: tolerance {} and regularization {}", options.tolerance,
             options.regularization);
  const std::vector<at::Tensor>& state = options.state;
  MixtureResult result{.mixture =
                           state.empty() ? start : Mixture{state.at(1), state.at(2), state.at(3)}};
  check_mixture(result.mixture, data.columns());
  result.mixture = as_double(result.mixture);
  double last = -std::numeric_limits<double>::infinity();
  if (!state.empty()) {
    result.iterations = state[0].item<int64_t>();
    last = state.at(4).item<double>();
  }
  while (!result.converged && result.iterations < options.iterations) {
    const double begin = now_seconds();
    MixtureData::Step step = data.step(result.mixture, options.regularization);
    result.mixture = std::move(step.after);
    result.converged = std::abs(step.log_likelihood - last) < options.tolerance;
    last = step.log_likelihood;
    ++result.iterations;
    if (!report) continue;
    MixtureIteration line{
        .iteration = result.iterations, .log_likelihood = last, .seconds = now_seconds() - begin};
    if (!result.converged)
      line.state = {at::scalar_tensor(result.iterations, at::kLong), result.mixture.weights,
                    result.mixture.means, result.mixture.covariances,
                    at::scalar_tensor(last, at::kDouble)};
    report(line);
  }
  result.log_likelihood = data.step(result.mixture, options.regularization).log_likelihood;
  result.labels = data.labels();
  const auto rows = static_cast<double>(data.rows()),
             free = static_cast<double>(result.mixture.num_parameters());
  result.bic = free * std::log(rows) - 2 * rows * result.log_likelihood;
  result.aic = 2 * free - 2 * rows * result.log_likelihood;
  return result;
}

}  // namespace dovetail::fit
