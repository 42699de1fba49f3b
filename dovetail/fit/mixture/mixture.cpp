#include "dovetail/fit/mixture/mixture.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/base/trace.h"
#include "dovetail/fit/rows/dense.h"
#include "dovetail/fit/rows/rows.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::fit {
namespace {

[[noreturn]] void refuse_covariance(const std::string& which) {
  throw UserError(fmt::format("mixture: {} is not positive", which),
                  "its rows lie in fewer dimensions than there are columns: raise the "
                  "regularization, use fewer components, or diagonal covariances");
}

at::Tensor root_of_matrix(const at::Tensor& covariance, const std::string& which) {
  const Cholesky factor = cholesky(covariance, std::numeric_limits<double>::epsilon());
  if (!factor.dependent.empty()) refuse_covariance(which);
  return inverse_of_lower(factor.lower).t().contiguous();
}

/// Returns the parameters of the tasks mixture.expect and mixture.scores: means, roots, constants
/// and structure. Spherical roots are expanded to (K, D). Constants (K) are log(weight) -
/// log|covariance| / 2 - D log(2 pi) / 2.
jobs::Parameters task_parameters(const Mixture& mixture, const at::Tensor& roots) {
  const int64_t num = mixture.means.size(0), dim = mixture.means.size(1);
  const bool tied = mixture.structure == Covariance::kTied;
  const at::Tensor shaped = mixture.structure == Covariance::kSpherical
                                ? roots.unsqueeze(1).expand({num, dim}).contiguous()
                                : roots;
  at::Tensor constants =
      at::log(mixture.weights) - 0.5 * static_cast<double>(dim) * std::log(2 * M_PI);
  for (int64_t k = 0; k < num; ++k) {
    const at::Tensor root = tied ? shaped : shaped[k];
    const at::Tensor diagonal = (root.dim() == 2 ? root.diagonal() : root).contiguous();
    const auto* value = diagonal.const_data_ptr<double>();
    double log_det = 0;
    for (int64_t p = 0; p < dim; ++p) log_det += std::log(value[p]);
    constants[k].add_(log_det);
  }
  return {mixture.means, shaped, constants, covariance_parameter(mixture.structure)};
}

/// Returns the mixture of maximum likelihood. With responsibilities r, `sums` holds: sum r (K), sum
/// r (x - mean) (K, D), sum r (x - mean)(x - mean)^T. `means` are the means of these differences.
Mixture maximize(const std::vector<at::Tensor>& sums, const at::Tensor& means, Covariance structure,
                 double regularization) {
  // A component without rows keeps its mean and gets no weight.
  const at::Tensor counts = sums[0] + 10 * std::numeric_limits<double>::epsilon();
  const double total = counts.sum().item<double>();
  const at::Tensor shift = sums[1] / counts.unsqueeze(1);
  Mixture after{
      .weights = counts / total, .means = means + shift, .covariances = {}, .structure = structure};
  switch (structure) {
    case Covariance::kFull:
      after.covariances =
          sums[2] / counts.view({-1, 1, 1}) - shift.unsqueeze(2) * shift.unsqueeze(1);
      after.covariances.diagonal(0, 1, 2).clamp_min_(0).add_(regularization);
      break;
    case Covariance::kTied:
      after.covariances = sums[2] / total;
      for (int64_t k = 0; k < counts.size(0); ++k)
        after.covariances.sub_(after.weights[k] * shift[k].unsqueeze(1) * shift[k]);
      after.covariances.diagonal().clamp_min_(0).add_(regularization);
      break;
    case Covariance::kDiagonal:
    case Covariance::kSpherical:
      after.covariances =
          (sums[2] / counts.unsqueeze(1) - shift.square()).clamp_min(0) + regularization;
      if (structure == Covariance::kSpherical) after.covariances = after.covariances.mean(1);
  }
  return after;
}

void check_mixture(const Mixture& mixture, int64_t columns) {
  user_check(mixture.means.dim() == 2 && mixture.means.size(1) == columns &&
                 mixture.weights.dim() == 1 && mixture.weights.size(0) == mixture.means.size(0) &&
                 mixture.covariances.sizes() ==
                     covariance_shape(mixture.structure, mixture.means.size(0), columns),
             "mixture: weights {}, means {} and covariances {} are no mixture over {} columns",
             ops::describe(mixture.weights), ops::describe(mixture.means),
             ops::describe(mixture.covariances), columns);
}

Mixture as_double(const Mixture& mixture) {
  return {.weights = mixture.weights.to(at::kDouble).contiguous(),
          .means = mixture.means.to(at::kDouble).contiguous(),
          .covariances = mixture.covariances.to(at::kDouble).contiguous(),
          .structure = mixture.structure};
}

}  // namespace

Covariance parse_covariance(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {"full", "diag", "tied", "spherical"};
  return parse_enum<Covariance>("mixture", "covariance", name, kNames);
}

std::vector<int64_t> covariance_shape(Covariance structure, int64_t num, int64_t dim) {
  if (structure == Covariance::kFull) return {num, dim, dim};
  if (structure == Covariance::kTied) return {dim, dim};
  return structure == Covariance::kDiagonal ? std::vector{num, dim} : std::vector{num};
}

at::Tensor covariance_parameter(Covariance structure) {
  return at::scalar_tensor(static_cast<int64_t>(structure), at::kLong);
}

Covariance covariance_of(const at::Tensor& parameter) {
  return static_cast<Covariance>(parameter.item<int64_t>());
}

int64_t Mixture::num_parameters() const {
  const int64_t num = means.size(0), dim = means.size(1);
  const bool matrices = structure == Covariance::kFull || structure == Covariance::kTied;
  const int64_t one = structure == Covariance::kSpherical ? 1 : dim;
  return num - 1 + num * dim +
         (structure == Covariance::kTied ? 1 : num) * (matrices ? dim * (dim + 1) / 2 : one);
}

at::Tensor precision_roots(const Mixture& mixture) {
  const at::Tensor& covariances = mixture.covariances;
  if (mixture.structure == Covariance::kTied)
    return root_of_matrix(covariances, "the covariance of all components");
  const auto which = [](int64_t k) { return fmt::format("the covariance of component {}", k); };
  at::Tensor roots = at::empty_like(covariances);
  for (int64_t k = 0; k < covariances.size(0); ++k) {
    const at::Tensor covariance = covariances[k];
    if (mixture.structure == Covariance::kFull) {
      roots[k].copy_(root_of_matrix(covariance, which(k)));
    } else {
      if (!(covariance > 0).all().item<bool>()) refuse_covariance(which(k));
      roots[k].copy_(covariance.rsqrt());
    }
  }
  return roots;
}

at::Tensor log_densities(const at::Tensor& x, const Mixture& mixture, const at::Tensor& roots) {
  const TableData table("mixture", x, nullptr,
                        {at::zeros({x.size(0), mixture.means.size(0)}, at::kDouble)});
  Mixture checked = mixture;
  checked.covariances = roots;
  check_mixture(checked, table.columns());
  checked = as_double(checked);
  table.run("mixture.scores", task_parameters(checked, checked.covariances));
  return table.tensor(1);
}

MixtureData::MixtureData(const at::Tensor& x, std::shared_ptr<jobs::Workers> workers)
    : table_("mixture", check_rows("mixture", x, /*takes_double=*/true), std::move(workers),
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
  const jobs::Partial sums =
      table_.run("mixture.start", {around, covariance_parameter(covariance)});
  return maximize(sums.tensors, around, covariance, regularization);
}

MixtureData::Step MixtureData::step(const Mixture& before, double regularization) {
  const jobs::Partial sums =
      table_.run("mixture.expect", task_parameters(before, precision_roots(before)));
  return {.after = maximize(sums.tensors, before.means, before.structure, regularization),
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
  MixtureResult result{
      .mixture =
          state.empty() ? start : Mixture{state.at(1), state.at(2), state.at(3), start.structure}};
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
  result.lower_bound = last;
  result.labels = data.labels();
  const auto rows = static_cast<double>(data.rows()),
             free = static_cast<double>(result.mixture.num_parameters());
  result.bic = free * std::log(rows) - 2 * rows * result.log_likelihood;
  result.aic = 2 * free - 2 * rows * result.log_likelihood;
  return result;
}

}  // namespace dovetail::fit
