#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dovetail/base/library.h"
#include "dovetail/fit/components/principal_components.h"
#include "dovetail/fit/kmeans/batch.h"
#include "dovetail/fit/kmeans/init.h"
#include "dovetail/fit/regression/regression.h"

/// Defines torch.classes.dovetail.KMeansData, torch.ops.dovetail.kmeans_*, pca_* and
/// linear_fit.
namespace dovetail::fit {
namespace {

struct LibraryData : torch::CustomClassHolder {
  LibraryData(const at::Tensor& x, const at::Tensor& weights) : data(x, nullptr, weights) {}
  KMeansData data;
};
using Data = c10::intrusive_ptr<LibraryData>;
using Tensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Tensors assign(const Data& data, const at::Tensor& centres) {
  const jobs::Partial partial = data->data.assign(centres);
  return {partial.tensors[0], partial.tensors[1], partial.tensors[2]};
}

using Fit = std::tuple<at::Tensor, at::Tensor, at::Tensor, double, int64_t, bool>;

/// Returns centres, labels, counts, inertia, iterations, converged.
Fit fit(const Data& data, const at::Tensor& centres, int64_t iterations, double tolerance,
        const std::string& empty) {
  const KMeansResult result = lloyd(
      data->data, centres,
      {.iterations = iterations, .tolerance = tolerance, .empty = parse_empty_cluster(empty)});
  return {result.centres, result.labels,     result.counts,
          result.inertia, result.iterations, result.converged};
}

Fit fit_batches(const Data& data, const at::Tensor& centres, int64_t batch, int64_t iterations,
                double tolerance, int64_t patience, int64_t seed) {
  const KMeansResult result = mini_batch(data->data, centres,
                                         {.batch = batch,
                                          .iterations = iterations,
                                          .tolerance = tolerance,
                                          .patience = patience,
                                          .seed = static_cast<uint64_t>(seed)});
  return {result.centres, result.labels,     result.counts,
          result.inertia, result.iterations, result.converged};
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

/// Returns coefficients, intercept, dependent columns.
std::tuple<at::Tensor, double, std::vector<int64_t>> linear(const at::Tensor& x,
                                                            const at::Tensor& target, double l2) {
  RegressionData data(x, target);
  LinearResult result = fit_linear(data, l2);
  return {result.coefficients, result.intercept, std::move(result.dependent)};
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
      "kmeans_data(Tensor x, Tensor? weights=None) -> "
      "__torch__.torch.classes.dovetail.KMeansData",
      [](const at::Tensor& x, const std::optional<at::Tensor>& weights) {
        return c10::make_intrusive<dovetail::fit::LibraryData>(x, weights.value_or(at::Tensor()));
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
  dovetail::define<"kmeans_labels", [](const Data& data) { return data->data.labels(); }>(m);
  dovetail::define<"kmeans_distances", [](const Data& data, const at::Tensor& centres) {
    const auto distances = data->data.distances(centres);
    return std::tuple(distances.squares, distances.inertia);
  }>(m);
}
