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

/// Sums of responsibilities r, of r (x - mean), and of its products or squares, per component.
class Sums {
 public:
  Sums(int64_t num, int64_t dim, bool full)
      : full_(full),
        dim_(dim),
        counts_(at::zeros({num}, at::kDouble)),
        sums_(at::zeros({num, dim}, at::kDouble)),
        squares_(full ? at::zeros({num, dim, dim}, at::kDouble)
                      : at::zeros({num, dim}, at::kDouble)) {}

  /// Adds rows of component k: y (rows, D), r (rows) with a stride of `stride`.
  void add(int64_t k, const double* y, const double* r, int64_t stride, int64_t rows) {
    double &count = counts_.mutable_data_ptr<double>()[k],
           *sum = sums_.mutable_data_ptr<double>() + k * dim_;
    double* square = squares_.mutable_data_ptr<double>() + k * (full_ ? dim_ * dim_ : dim_);
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
  int64_t dim_;
  at::Tensor counts_, sums_, squares_;
  std::vector<double> weighted_;
};

/// Parameters: points (K, D) float64; () bool, true if covariances are full. Data: reads labels.
/// Partial, for each label: the number of its rows (K), sum of x - point (K, D), and sum of its
/// products (K, D, D) or squares (K, D).
jobs::Partial start_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const auto data = jobs::rows_of(shard);
  const int64_t num = parameters[0].size(0), dim = parameters[0].size(1);
  const at::Tensor& x = data[MixtureData::kX];
  const auto* label = data[MixtureData::kLabels].const_data_ptr<int32_t>();
  const auto* points = parameters[0].const_data_ptr<double>();
  Sums sums(num, dim, parameters[1].item<bool>());
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
  Distances(const at::Tensor& roots, int64_t dim)
      : roots_(roots.const_data_ptr<double>()), dim_(dim), full_(roots.dim() == 3) {}

  template <class Take>
  void of(int64_t k, const std::vector<double>& y, int64_t rows, const Take& take) {
    z_.assign(static_cast<size_t>(rows * dim_), 0);
    if (full_) {
      add_product({.a = y.data(),
                   .a_row = dim_,
                   .a_column = 1,
                   .b = roots_ + k * dim_ * dim_,
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
          z_[at] = y[at] * roots_[k * dim_ + p];
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
  std::vector<double> z_;
};

/// Parameters, float64, as mixture.cpp computes them: means (K, D), roots (K, D, D) or (K, D),
/// constants (K). Partial, with responsibilities r: sum r (K), sum r (x - mean) (K, D), and r times
/// its products (K, D, D) or squares (K, D). The last tensor is the log-likelihood ().
jobs::Partial expect_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const auto data = jobs::rows_of(shard);
  const int64_t num = parameters[0].size(0), dim = parameters[0].size(1);
  const at::Tensor& x = data[MixtureData::kX];
  auto* label = data[MixtureData::kLabels].mutable_data_ptr<int32_t>();
  const auto *means = parameters[0].const_data_ptr<double>(),
             *constants = parameters[2].const_data_ptr<double>();
  Sums sums(num, dim, parameters[1].dim() == 3);
  Distances distances(parameters[1], dim);
  std::vector<double> y(static_cast<size_t>(kBlockRows * dim)),
      r(static_cast<size_t>(kBlockRows * num));
  double log_likelihood = 0;
  for (int64_t begin = 0; begin < shard.size; begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, shard.size - begin);
    for (int64_t k = 0; k < num; ++k) {
      subtract_point(x, begin, means + k * dim, rows, y.data(), dim);
      distances.of(k, y, rows, [&](int64_t i, double square) {
        r[static_cast<size_t>(i * num + k)] = constants[k] - 0.5 * square;
      });
    }
    for (int64_t i = 0; i < rows; ++i) {  // log densities become responsibilities
      const Softmax of_row = softmax(r.data() + i * num, num);
      label[begin + i] = static_cast<int32_t>(of_row.largest);
      log_likelihood += of_row.log_sum;
    }
    for (int64_t k = 0; k < num; ++k) {
      subtract_point(x, begin, means + k * dim, rows, y.data(), dim);
      sums.add(k, y.data(), r.data() + k, num, rows);
    }
  }
  std::vector<at::Tensor> tensors = sums.take();
  tensors.push_back(at::scalar_tensor(log_likelihood, at::kDouble));
  return {std::move(tensors), static_cast<double>(shard.size)};
}

const jobs::TaskRegistration kStart("mixture.start", at::kCPU, start_task);
const jobs::TaskRegistration kExpect("mixture.expect", at::kCPU, expect_task,
                                     {MixtureData::kLabels});

}  // namespace
}  // namespace dovetail::fit
