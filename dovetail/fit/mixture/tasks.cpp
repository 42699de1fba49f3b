#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "dovetail/fit/mixture/mixture.h"
#include "dovetail/fit/rows/dense.h"
#include "dovetail/fit/rows/products_simd.h"
#include "dovetail/fit/rows/rows.h"

/// Tasks of mixtures on a CPU, on the tensors of MixtureData. N rows, D columns, K components.
namespace dovetail::fit {
namespace {

/// Sums of responsibilities r, of r (x - mean), and of its products or squares. Products of tied
/// covariances are summed over all components, the rest per component.
class Sums {
 public:
  Sums(int64_t num, int64_t dim, Covariance structure)
      : full_(structure == Covariance::kFull || structure == Covariance::kTied),
        dim_(dim),
        stride_(structure == Covariance::kTied ? 0
                : full_                        ? dim * dim
                                               : dim),
        counts_(at::zeros({num}, at::kDouble)),
        sums_(at::zeros({num, dim}, at::kDouble)),
        squares_(structure == Covariance::kTied   ? at::zeros({dim, dim}, at::kDouble)
                 : structure == Covariance::kFull ? at::zeros({num, dim, dim}, at::kDouble)
                                                  : at::zeros({num, dim}, at::kDouble)) {}

  /// Adds rows of component k: y (rows, D), r (rows) with a stride of `stride`.
  void add(int64_t k, const double* y, const double* r, int64_t stride, int64_t rows) {
    double &count = counts_.mutable_data_ptr<double>()[k],
           *sum = sums_.mutable_data_ptr<double>() + k * dim_;
    double* square = squares_.mutable_data_ptr<double>() + k * stride_;
    weighted_.resize(static_cast<size_t>(rows * dim_));
    for (int64_t i = 0; i < rows; ++i) {
      const double weight = r[i * stride];
      count += weight;
      for (int64_t p = 0; p < dim_; ++p) {
        const double value = weight * y[i * dim_ + p];
        weighted_[static_cast<size_t>(i * dim_ + p)] = value;
        sum[p] += value;
        if (!full_) square[p] += value * y[i * dim_ + p];
      }
    }
    if (full_)
      add_product({.a = weighted_.data(),
                   .a_row = 1,
                   .a_column = dim_,
                   .b = y,
                   .b_row = dim_,
                   .c = square,
                   .c_row = dim_,
                   .m = dim_,
                   .n = dim_,
                   .k = rows});
  }

  std::vector<at::Tensor> take() const { return {counts_, sums_, squares_}; }

 private:
  bool full_;
  int64_t dim_, stride_;
  at::Tensor counts_, sums_, squares_;
  std::vector<double> weighted_;
};

/// Parameters: points (K, D) float64; covariance_parameter. Data: reads labels. Partial, for each
/// label: the number of its rows (K), sum of x - point (K, D), and sum of its products or squares.
/// The last one has the shape of Mixture::covariances, but (K, D) for spherical ones.
jobs::Partial start_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const auto data = jobs::rows_of(shard);
  const int64_t num = parameters[0].size(0), dim = parameters[0].size(1);
  const at::Tensor& x = data[MixtureData::kX];
  const auto* label = data[MixtureData::kLabels].const_data_ptr<int32_t>();
  const auto* points = parameters[0].const_data_ptr<double>();
  Sums sums(num, dim, covariance_of(parameters[1]));
  std::vector<double> y(static_cast<size_t>(dim));
  const double one = 1;
  for (int64_t i = 0; i < shard.size; ++i) {
    subtract_point(x, i, points + label[i] * dim, 1, y.data(), dim);
    sums.add(label[i], y.data(), &one, 1, 1);
  }
  return {sums.take(), static_cast<double>(shard.size)};
}

/// Computes (x - mean)^T C^-1 (x - mean) for each row of y = x - mean, by the root of C^-1.
class Distances {
 public:
  Distances(const at::Tensor& roots, int64_t dim, Covariance structure)
      : roots_(roots.const_data_ptr<double>()),
        dim_(dim),
        full_(structure == Covariance::kFull || structure == Covariance::kTied),
        stride_(structure == Covariance::kTied ? 0
                : full_                        ? dim * dim
                                               : dim) {}

  template <class Take>
  void of(int64_t k, const std::vector<double>& y, int64_t rows, const Take& take) {
    z_.assign(static_cast<size_t>(rows * dim_), 0);
    if (full_) {
      add_product({.a = y.data(),
                   .a_row = dim_,
                   .a_column = 1,
                   .b = roots_ + k * stride_,
                   .b_row = dim_,
                   .c = z_.data(),
                   .c_row = dim_,
                   .m = rows,
                   .n = dim_,
                   .k = dim_});
    } else {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t p = 0; p < dim_; ++p) {
          const auto at = static_cast<size_t>(i * dim_ + p);
          z_[at] = y[at] * roots_[k * stride_ + p];
        }
    }
    for (int64_t i = 0; i < rows; ++i) {
      double square = 0;
      for (int64_t p = 0; p < dim_; ++p) {
        const double z = z_[static_cast<size_t>(i * dim_ + p)];
        square += z * z;
      }
      take(i, square);
    }
  }

 private:
  const double* roots_;
  int64_t dim_;
  bool full_;
  int64_t stride_;
  std::vector<double> z_;
};

/// Mixture as parameters of a task, float64, as mixture.cpp computes them: means (K, D), roots (K,
/// D, D), (D, D) or (K, D), constants (K), covariance_parameter.
struct Components {
  explicit Components(const jobs::Parameters& parameters)
      : num(parameters[0].size(0)),
        dim(parameters[0].size(1)),
        structure(covariance_of(parameters[3])),
        means(parameters[0].const_data_ptr<double>()),
        constants(parameters[2].const_data_ptr<double>()),
        distances(parameters[1], dim, structure),
        y(static_cast<size_t>(kBlockRows * dim)) {}

  /// Sets scores (rows, K) to log(weight) + log density of `rows` rows of x, at most kBlockRows.
  void score(const at::Tensor& x, int64_t begin, int64_t rows, double* scores) {
    for (int64_t k = 0; k < num; ++k) {
      subtract_point(x, begin, means + k * dim, rows, y.data(), dim);
      distances.of(k, y, rows, [&](int64_t i, double square) {
        scores[i * num + k] = constants[k] - 0.5 * square;
      });
    }
  }

  int64_t num, dim;
  Covariance structure;
  const double *means, *constants;
  Distances distances;
  std::vector<double> y;  ///< kBlockRows rows of D
};

/// Parameters: Components. Partial, with responsibilities r: sum r (K), sum r (x - mean) (K, D),
/// and r times its products or squares, shaped as in start_task. The last tensor is the
/// log-likelihood ().
jobs::Partial expect_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const auto data = jobs::rows_of(shard);
  const at::Tensor& x = data[MixtureData::kX];
  auto* label = data[MixtureData::kLabels].mutable_data_ptr<int32_t>();
  Components of(parameters);
  Sums sums(of.num, of.dim, of.structure);
  std::vector<double> r(static_cast<size_t>(kBlockRows * of.num));
  double log_likelihood = 0;
  for (int64_t begin = 0; begin < shard.size; begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, shard.size - begin);
    of.score(x, begin, rows, r.data());
    for (int64_t i = 0; i < rows; ++i) {  // log densities become responsibilities
      const Softmax of_row = softmax(r.data() + i * of.num, of.num);
      label[begin + i] = static_cast<int32_t>(of_row.largest);
      log_likelihood += of_row.log_sum;
    }
    for (int64_t k = 0; k < of.num; ++k) {
      subtract_point(x, begin, of.means + k * of.dim, rows, of.y.data(), of.dim);
      sums.add(k, of.y.data(), r.data() + k, of.num, rows);
    }
  }
  std::vector<at::Tensor> tensors = sums.take();
  tensors.push_back(at::scalar_tensor(log_likelihood, at::kDouble));
  return {std::move(tensors), static_cast<double>(shard.size)};
}

/// Parameters: Components. Data: x, and scores (N, K) float64, which are written. Partial: none.
jobs::Partial scores_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const auto data = jobs::rows_of(shard);
  auto* scores = data[1].mutable_data_ptr<double>();
  Components of(parameters);
  for (int64_t begin = 0; begin < shard.size; begin += kBlockRows)
    of.score(data[0], begin, std::min(kBlockRows, shard.size - begin), scores + begin * of.num);
  return {{}, static_cast<double>(shard.size)};
}

const jobs::TaskRegistration kStart("mixture.start", at::kCPU, start_task);
const jobs::TaskRegistration kExpect("mixture.expect", at::kCPU, expect_task,
                                     {MixtureData::kLabels});
const jobs::TaskRegistration kScores("mixture.scores", at::kCPU, scores_task, {1});

}  // namespace
}  // namespace dovetail::fit
