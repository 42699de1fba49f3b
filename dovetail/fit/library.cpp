#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dovetail/base/library.h"
#include "dovetail/fit/components/principal_components.h"
#include "dovetail/fit/kmeans/batch.h"
#include "dovetail/fit/kmeans/init.h"
#include "dovetail/fit/mixture/mixture.h"
#include "dovetail/fit/regression/regression.h"
#include "dovetail/jobs/runtime.h"

/// Defines torch.classes.dovetail.KMeansData, torch.ops.dovetail.kmeans_*, pca_*,
/// linear_fit, logistic_fit and mixture_*.
namespace dovetail::fit {
namespace {

/// Returns the executors of a list such as "cpu:2,cpu:1"; null if the list is empty.
std::shared_ptr<jobs::Workers> executors_of(const std::string& list) {
  if (list.empty()) return nullptr;
  return std::make_shared<jobs::Runtime>(jobs::parse_executors(list));
}

struct LibraryData : torch::CustomClassHolder {
  LibraryData(const at::Tensor& x, const at::Tensor& weights, const std::string& executors)
      : data(x, executors_of(executors), weights) {}
  KMeansData data;
};
using Data = c10::intrusive_ptr<LibraryData>;
using Tensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Tensors assign(const Data& data, const at::Tensor& centres) {
  const jobs::Partial partial = data->data.assign(centres);
  return {partial.tensors[0], partial.tensors[1], partial.tensors[2]};
}

using Fit = std::tuple<at::Tensor, at::Tensor, at::Tensor, double, int64_t, bool, at::Tensor>;

/// Lines of a run's course: inertia, shift and changed labels (-1: not counted) of each iteration.
class Lines {
 public:
  /// Returns a callback that adds lines. If `verbose` is 0, returns an empty one.
  std::function<void(const LloydIteration&)> report(int64_t verbose) {
    if (verbose == 0) return {};
    return [this](const LloydIteration& line) {
      for (const double number :
           {line.inertia, line.shift, static_cast<double>(line.changed.value_or(-1))})
        numbers_.push_back(number);
    };
  }
  at::Tensor take() const { return at::tensor(numbers_, at::kDouble).view({-1, 3}); }

 private:
  std::vector<double> numbers_;
};

/// Returns centres, labels, counts, inertia, iterations, converged, and Lines (iterations, 3)
/// float64 unless `verbose` is 0.
Fit fit_of(const KMeansResult& result, const Lines& lines) {
  return {result.centres,    result.labels,    result.counts, result.inertia,
          result.iterations, result.converged, lines.take()};
}

Fit fit(const Data& data, const at::Tensor& centres, int64_t iterations, double tolerance,
        const std::string& empty, int64_t verbose) {
  Lines lines;
  const KMeansResult result =
      lloyd(data->data, centres,
            {.iterations = iterations, .tolerance = tolerance, .empty = parse_empty_cluster(empty)},
            lines.report(verbose));
  return fit_of(result, lines);
}

Fit fit_batches(const Data& data, const at::Tensor& centres, int64_t batch, int64_t iterations,
                double tolerance, int64_t patience, int64_t seed, int64_t verbose) {
  Lines lines;
  const KMeansResult result = mini_batch(data->data, centres,
                                         {.batch = batch,
                                          .iterations = iterations,
                                          .tolerance = tolerance,
                                          .patience = patience,
                                          .seed = static_cast<uint64_t>(seed)},
                                         lines.report(verbose));
  return fit_of(result, lines);
}

/// Returns directions, variances along them, the total variance, the mean, iterations, converged.
std::tuple<at::Tensor, at::Tensor, double, at::Tensor, int64_t, bool> pca(
    const at::Tensor& x, int64_t components, const std::string& solver, int64_t iterations,
    double tolerance, int64_t seed) {
  const TableData data("PCA", x, nullptr);
  const PrincipalResult result = fit_principal(data, {.components = components,
                                                      .solver = parse_principal_solver(solver),
                                                      .iterations = iterations,
                                                      .tolerance = tolerance,
                                                      .seed = static_cast<uint64_t>(seed)});
  return {result.directions, result.variances,  data.variance().sum().item<double>(),
          data.mean(),       result.iterations, result.converged};
}

RegressionData regression_data(const at::Tensor& x, const at::Tensor& target,
                               const std::optional<at::Tensor>& weights) {
  return {x, target, nullptr, weights.value_or(at::Tensor())};
}

/// Returns coefficients, intercept, dependent columns.
std::tuple<at::Tensor, double, std::vector<int64_t>> linear(
    const at::Tensor& x, const at::Tensor& target, const std::optional<at::Tensor>& weights,
    double l2, bool intercept) {
  RegressionData data = regression_data(x, target, weights);
  LinearResult result = fit_linear(data, {.l2 = l2, .intercept = intercept});
  return {result.coefficients, result.intercept, std::move(result.dependent)};
}

/// Returns coefficients, intercepts, iterations, converged.
std::tuple<at::Tensor, at::Tensor, int64_t, bool> logistic(
    const at::Tensor& x, const at::Tensor& target, const std::optional<at::Tensor>& weights,
    int64_t classes, double l2, int64_t iterations, double tolerance, bool intercept) {
  RegressionData data = regression_data(x, target, weights);
  const LogisticResult result = fit_logistic(
      data, classes,
      {.l2 = l2, .iterations = iterations, .tolerance = tolerance, .intercept = intercept});
  return {result.coefficients, result.intercepts, result.iterations, result.converged};
}

/// Returns weights, means and covariances of the mixture whose components are the rows' labels.
Tensors mixture_start(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& points,
                      const std::string& covariance, double regularization) {
  MixtureData data(x);
  const Mixture start =
      data.of_labels(labels, points, parse_covariance(covariance), regularization);
  return {start.weights, start.means, start.covariances};
}

/// `lower_bound` is the log-likelihood of a row before `start`; -infinity: unknown. Returns
/// weights, means, covariances, labels, lower bound, iterations, converged.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, double, int64_t, bool> mixture(
    const at::Tensor& x, const at::Tensor& weights, const at::Tensor& means,
    const at::Tensor& covariances, const std::string& covariance, int64_t iterations,
    double tolerance, double regularization, double lower_bound) {
  MixtureData data(x);
  const MixtureResult result =
      fit_mixture(data, {.structure = parse_covariance(covariance)},
                  {.iterations = iterations,
                   .tolerance = tolerance,
                   .regularization = regularization,
                   .state = {at::scalar_tensor(0, at::kLong), weights, means, covariances,
                             at::scalar_tensor(lower_bound, at::kDouble)}});
  const Mixture& found = result.mixture;
  return {found.weights,      found.means,       found.covariances, result.labels,
          result.lower_bound, result.iterations, result.converged};
}

at::Tensor mixture_roots(const at::Tensor& means, const at::Tensor& covariances,
                         const std::string& covariance) {
  return precision_roots(
      {.means = means, .covariances = covariances, .structure = parse_covariance(covariance)});
}

at::Tensor mixture_scores(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& means,
                          const at::Tensor& roots, const std::string& covariance) {
  return log_densities(
      x, {.weights = weights, .means = means, .structure = parse_covariance(covariance)}, roots);
}

at::Tensor init(const Data& data, int64_t num_centres, const std::string& name, int64_t seed) {
  return initial_centres(data->data, num_centres, parse_kmeans_init(name),
                         static_cast<uint64_t>(seed));
}

}  // namespace
}  // namespace dovetail::fit

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  using dovetail::fit::Data;
  m.class_<dovetail::fit::LibraryData>("KMeansData");
  dovetail::define<
      "kmeans_data(Tensor x, Tensor? weights=None, str executors=\"\") -> "
      "__torch__.torch.classes.dovetail.KMeansData",
      [](const at::Tensor& x, const std::optional<at::Tensor>& weights,
         const std::string& executors) {
        return c10::make_intrusive<dovetail::fit::LibraryData>(x, weights.value_or(at::Tensor()),
                                                               executors);
      }>(m);
  dovetail::define<"kmeans_assign", dovetail::fit::assign>(m);
  dovetail::define<"kmeans_init", dovetail::fit::init>(m);
  dovetail::define<"kmeans_fit", dovetail::fit::fit>(m);
  dovetail::define<"kmeans_fit_batches", dovetail::fit::fit_batches>(m);
  dovetail::define<"kmeans_batch_rows", [](int64_t rows, int64_t batch, int64_t iteration,
                                           int64_t seed) {
    return dovetail::fit::batch_rows(rows, batch, iteration, static_cast<uint64_t>(seed));
  }>(m);
  dovetail::define<"pca_fit", dovetail::fit::pca>(m);
  dovetail::define<"pca_iterates", [](const std::string& solver, int64_t columns) {
    return dovetail::fit::resolved(dovetail::fit::parse_principal_solver(solver), columns) ==
           dovetail::fit::PrincipalSolver::kPower;
  }>(m);
  dovetail::define<"linear_fit", dovetail::fit::linear>(m);
  dovetail::define<"logistic_fit", dovetail::fit::logistic>(m);
  dovetail::define<"mixture_start", dovetail::fit::mixture_start>(m);
  dovetail::define<"mixture_fit", dovetail::fit::mixture>(m);
  dovetail::define<"mixture_roots", dovetail::fit::mixture_roots>(m);
  dovetail::define<"mixture_scores", dovetail::fit::mixture_scores>(m);
  dovetail::define<"kmeans_labels", [](const Data& data) { return data->data.labels(); }>(m);
  dovetail::define<"kmeans_distances", [](const Data& data, const at::Tensor& centres) {
    const auto distances = data->data.distances(centres);
    return std::tuple(distances.squares, distances.inertia);
  }>(m);
}
