#include "dovetail/fit/components/principal_components.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/base/trace.h"
#include "dovetail/fit/components/largest_eigen.h"
#include "dovetail/fit/rows/dense.h"
#include "dovetail/fit/rows/products_simd.h"
#include "dovetail/fit/rows/rows.h"

namespace dovetail::fit {
namespace {

/// Directions in addition to the requested ones. They determine how fast the last requested one
/// converges.
constexpr int64_t kMore = 8;

/// Parameters: mean (D), directions V (D, R) float64. Partial: sum of z z^T V (D, R) with z = x -
/// mean.
jobs::Partial times_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const at::Tensor x = jobs::rows_of(shard, 0);
  const int64_t dim = x.size(1), num = parameters[1].size(1);
  const auto* mean = parameters[0].const_data_ptr<double>();
  const at::Tensor sum = at::zeros({dim, num}, at::kDouble);
  std::vector<double> z(static_cast<size_t>(kBlockRows * dim)), along;
  for (int64_t begin = 0; begin < shard.size; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, shard.size - begin);
    subtract_point(x, begin, mean, count, z.data(), dim);
    along.assign(static_cast<size_t>(count * num), 0);
    add_product({.a = z.data(),
                 .a_row = dim,
                 .a_column = 1,
                 .b = parameters[1].const_data_ptr<double>(),
                 .b_row = num,
                 .c = along.data(),
                 .c_row = num,
                 .m = count,
                 .n = num,
                 .k = dim});
    add_product({.a = z.data(),
                 .a_row = 1,
                 .a_column = dim,
                 .b = along.data(),
                 .b_row = num,
                 .c = sum.mutable_data_ptr<double>(),
                 .c_row = num,
                 .m = dim,
                 .n = num,
                 .k = count});
  }
  return {{sum}, static_cast<double>(shard.size)};
}
const jobs::TaskRegistration kTimes("principal.times", at::kCPU, times_task);

/// Returns true if the products of a table's covariance are float32. Products of fewer columns take
/// no longer in float64 than the reading of the rows.
bool multiplies_floats(const at::Tensor& x) {
  constexpr int64_t kColumns = 48;
  return x.scalar_type() == at::kFloat && x.size(1) >= kColumns;
}

/// Parameters: point (D) float64, or float32 if multiplies_floats. Partial: sum of z z^T with z = x
/// - point, (D, D) float64. Only its elements on and above the diagonal are defined.
jobs::Partial covariance_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const at::Tensor x = jobs::rows_of(shard, 0);
  const int64_t dim = x.size(1);
  const at::Tensor sum = at::zeros({dim, dim}, at::kDouble);
  auto* to = sum.mutable_data_ptr<double>();
  if (multiplies_floats(x)) {
    add_float_squares(x.const_data_ptr<float>(), parameters[0].const_data_ptr<float>(), shard.size,
                      dim, to);
  } else {
    with_rows(x, 0, [&](const auto* rows) {
      add_squares(rows, parameters[0].const_data_ptr<double>(), shard.size, dim, to);
    });
  }
  return {{sum}, static_cast<double>(shard.size)};
}
const jobs::TaskRegistration kCovariance("principal.covariance", at::kCPU, covariance_task);

/// Returns a (M, K) times b (K, N), summed in a fixed order.
at::Tensor times(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  at::Tensor c = at::zeros({a.size(0), b.size(1)}, at::kDouble);
  add_product({.a = left.const_data_ptr<double>(),
               .a_row = a.size(1),
               .a_column = 1,
               .b = right.const_data_ptr<double>(),
               .b_row = b.size(1),
               .c = c.mutable_data_ptr<double>(),
               .c_row = b.size(1),
               .m = a.size(0),
               .n = b.size(1),
               .k = a.size(1)});
  return c;
}

at::Tensor first_directions(int64_t dim, int64_t num, uint64_t seed) {
  at::Tensor directions = at::empty({dim, num}, at::kDouble);
  auto* value = directions.mutable_data_ptr<double>();
  seed = mix_seed(seed, name_key("principal"));
  for (int64_t i = 0; i < directions.numel(); ++i)
    value[i] = random_normal(seed, RandomStream::kInitialize, static_cast<uint64_t>(i))[0];
  orthonormalize(directions);
  return directions;
}

PrincipalResult by_covariance(const TableData& data, const PrincipalOptions& options,
                              const std::function<void(const PrincipalIteration&)>& report) {
  const double begin = now_seconds();
  const bool floats = multiplies_floats(data.x());
  const at::Tensor point = floats ? data.mean().to(at::kFloat) : data.mean();
  const jobs::Partial sums = data.run("principal.covariance", {point});
  at::Tensor covariance = sums.tensors[0] / sums.weight;
  if (floats) {
    const at::Tensor shift = data.mean() - point;
    covariance -= shift.unsqueeze(1) * shift;
  }
  const Eigen largest = largest_eigen(covariance, options.components);
  PrincipalResult result{.directions = largest.vectors,
                         .variances = largest.values.clamp_min(0),
                         .iterations = 1,
                         .converged = true};
  if (report) {
    const double all = data.variance().sum().item<double>();
    report({.iteration = 1,
            .explained = all > 0 ? result.variances.sum().item<double>() / all : 0,
            .seconds = now_seconds() - begin});
  }
  return result;
}

PrincipalResult by_power(const TableData& data, const PrincipalOptions& options,
                         const std::function<void(const PrincipalIteration&)>& report) {
  const int64_t dim = data.columns(), wanted = options.components;
  const double all = data.variance().sum().item<double>();
  at::Tensor basis = first_directions(dim, std::min(dim, wanted + kMore), options.seed);
  PrincipalResult result;
  if (!options.state.empty()) {
    result.iterations = options.state.at(0).item<int64_t>();
    basis = options.state.at(1);
  }
  while (!result.converged && result.iterations < options.iterations) {
    const double begin = now_seconds();
    const jobs::Partial sums = data.run("principal.times", {data.mean(), basis});
    const at::Tensor image = sums.tensors[0] / sums.weight;  // C V, with the covariance C
    const at::Tensor within = times(basis.t(), image);
    const Eigen best = eigen((within + within.t()) / 2);
    const at::Tensor vectors = times(basis, best.vectors), images = times(image, best.vectors);
    const at::Tensor wrong =
        (images - vectors * best.values).narrow(1, 0, wanted).square().sum(0).sqrt();
    const double largest = best.values[0].item<double>();
    const double residual = largest > 0 ? wrong.max().item<double>() / largest : 0;
    result.directions = vectors.narrow(1, 0, wanted).contiguous();
    result.variances = best.values.narrow(0, 0, wanted).clamp_min(0);
    result.converged = residual <= options.tolerance;
    ++result.iterations;
    basis = images;
    orthonormalize(basis);
    if (!report) continue;
    PrincipalIteration line{.iteration = result.iterations,
                            .residual = residual,
                            .explained = all > 0 ? result.variances.sum().item<double>() / all : 0,
                            .seconds = now_seconds() - begin};
    // The last permitted iteration computes directions that a state does not hold.
    if (!result.converged && result.iterations < options.iterations)
      line.state = {at::scalar_tensor(result.iterations, at::kLong), basis};
    report(line);
  }
  return result;
}

}  // namespace

PrincipalSolver parse_principal_solver(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames = {"auto", "covariance", "power"};
  return parse_enum<PrincipalSolver>("principal components", "solver", name, kNames);
}

PrincipalSolver resolved(PrincipalSolver solver, int64_t columns) {
  if (solver != PrincipalSolver::kAuto) return solver;
  return columns <= kMostCovariance ? PrincipalSolver::kCovariance : PrincipalSolver::kPower;
}

PrincipalResult fit_principal(const TableData& data, const PrincipalOptions& options,
                              const std::function<void(const PrincipalIteration&)>& report) {
  const int64_t wanted = options.components;
  user_check(wanted >= 1 && wanted <= data.columns(), "principal components: {} of {} columns",
             wanted, data.columns());
  user_check(options.iterations > 0 && options.tolerance >= 0,
             "principal components: {} iterations and tolerance {}", options.iterations,
             options.tolerance);
  const bool power =
      !options.state.empty() || resolved(options.solver, data.columns()) == PrincipalSolver::kPower;
  PrincipalResult result =
      power ? by_power(data, options, report) : by_covariance(data, options, report);
  const double all = data.variance().sum().item<double>();
  result.shares = result.variances / (all > 0 ? all : 1);
  for (int64_t i = 0; i < wanted; ++i) {
    const at::Tensor direction = result.directions.select(1, i);
    if (direction[direction.abs().argmax()].item<double>() < 0) direction.neg_();
  }
  return result;
}

}  // namespace dovetail::fit
