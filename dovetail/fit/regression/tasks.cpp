#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "dovetail/fit/regression/regression.h"
#include "dovetail/fit/rows/dense.h"
#include "dovetail/fit/rows/products_simd.h"
#include "dovetail/fit/rows/rows.h"

/// Tasks of regression on a CPU, on the tensors of RegressionData. N rows, D columns, M outputs.
namespace dovetail::fit {
namespace {

/// Calls `take` for blocks of z = x - mean (rows, D), with a 1 after each row as the column of an
/// intercept.
template <class Take>
void for_blocks(const jobs::Shards& shard, const at::Tensor& mean, const Take& take) {
  const at::Tensor rows = jobs::rows_of(shard, RegressionData::kX);
  const int64_t dim = rows.size(1);
  const auto* middle = mean.const_data_ptr<double>();
  std::vector<double> z(static_cast<size_t>(kBlockRows * (dim + 1)), 1);
  for (int64_t begin = 0; begin < shard.size; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, shard.size - begin);
    subtract_point(rows, begin, middle, count, z.data(), dim + 1);
    take(begin, count, z.data());
  }
}

/// Returns the weights of the shard's rows; nullptr: all are 1.
const double* weights_of(const std::vector<at::Tensor>& data) {
  return data.size() > RegressionData::kWeights
             ? data[RegressionData::kWeights].const_data_ptr<double>()
             : nullptr;
}

/// Returns the sum of the weights of `rows` rows.
double weight_of(const double* weights, int64_t rows) {
  return weights == nullptr ? static_cast<double>(rows)
                            : std::accumulate(weights, weights + rows, 0.0);
}

/// Parameters: point (D) float64. Data: has weights w. Partial (2, D): sums of w (x - point) and of
/// w (x - point)^2.
jobs::Partial weighted_moments_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const auto data = jobs::rows_of(shard);
  const double* weight = weights_of(data);
  const int64_t dim = parameters[0].size(0);
  const at::Tensor sums = at::zeros({2, dim}, at::kDouble);
  auto* sum = sums.mutable_data_ptr<double>();
  for_blocks(shard, parameters[0], [&](int64_t begin, int64_t rows, const double* z) {
    for (int64_t i = 0; i < rows; ++i, z += dim + 1)
      for (int64_t p = 0; p < dim; ++p) {
        sum[p] += weight[begin + i] * z[p];
        sum[dim + p] += weight[begin + i] * z[p] * z[p];
      }
  });
  return {{sums}, weight_of(weight, shard.size)};
}

/// Parameters: mean (D), near () float64. Partial, with z = x - mean and v = y - near: Z^T Z (D,
/// D), Z^T v (D), the sum of z (D), and the sums of v and v^2 (2). Every term has the factor of its
/// row's weight.
jobs::Partial products_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const auto data = jobs::rows_of(shard);
  const auto* y = data[RegressionData::kTarget].const_data_ptr<double>();
  const double* weight = weights_of(data);
  const int64_t dim = parameters[0].size(0);
  const double near = parameters[1].item<double>();
  const at::Tensor squares = at::zeros({dim, dim}, at::kDouble),
                   products = at::zeros({dim}, at::kDouble), sums = at::zeros({dim}, at::kDouble),
                   moments = at::zeros({2}, at::kDouble);
  auto *product = products.mutable_data_ptr<double>(), *sum = sums.mutable_data_ptr<double>(),
       *moment = moments.mutable_data_ptr<double>();
  std::vector<double> weighted(weight == nullptr ? 0 : static_cast<size_t>(kBlockRows * (dim + 1)));
  for_blocks(shard, parameters[0], [&](int64_t begin, int64_t rows, const double* z) {
    const double* left = z;
    if (weight != nullptr) {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t p = 0; p <= dim; ++p)
          weighted[static_cast<size_t>(i * (dim + 1) + p)] =
              weight[begin + i] * z[i * (dim + 1) + p];
      left = weighted.data();
    }
    add_product({.a = left,
                 .a_row = 1,
                 .a_column = dim + 1,
                 .b = z,
                 .b_row = dim + 1,
                 .c = squares.mutable_data_ptr<double>(),
                 .c_row = dim,
                 .m = dim,
                 .n = dim,
                 .k = rows});
    for (int64_t i = 0; i < rows; ++i) {
      const double v = y[begin + i] - near, own = left[i * (dim + 1) + dim];  // 1, or the weight
      moment[0] += own * v;
      moment[1] += own * v * v;
      for (int64_t p = 0; p < dim; ++p) {
        product[p] += left[i * (dim + 1) + p] * v;
        sum[p] += left[i * (dim + 1) + p];
      }
    }
  });
  return {{squares, products, sums, moments}, weight_of(weight, shard.size)};
}

/// Parameters: mean (D), coefficients (D), constant () float64. Partial: sum of (y - z coefficients
/// - constant)^2, times the weight of the row.
jobs::Partial residuals_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const auto data = jobs::rows_of(shard);
  const auto* y = data[RegressionData::kTarget].const_data_ptr<double>();
  const double* weight = weights_of(data);
  const auto* w = parameters[1].const_data_ptr<double>();
  const int64_t dim = parameters[1].size(0);
  const double constant = parameters[2].item<double>();
  double sum = 0;
  for_blocks(shard, parameters[0], [&](int64_t begin, int64_t rows, const double* z) {
    for (int64_t i = 0; i < rows; ++i) {
      double left = y[begin + i] - constant;
      for (int64_t p = 0; p < dim; ++p) left -= z[i * (dim + 1) + p] * w[p];
      sum += weight == nullptr ? left * left : weight[begin + i] * left * left;
    }
  });
  return {{at::scalar_tensor(sum, at::kDouble)}, weight_of(weight, shard.size)};
}

/// Replaces the scores (M) of a row by the derivatives of its loss, and returns the loss. Sets
/// `right` if the class is the first one of the highest score. A single output is the score of
/// class 1; the score of class 0 is 0.
double derive(double* score, int64_t outputs, int64_t target, bool& right) {
  if (outputs == 1) {
    const double s = *score, other = std::exp(-std::abs(s));
    const double p = s >= 0 ? 1 / (1 + other) : other / (1 + other);
    *score = p - static_cast<double>(target);
    right = (s > 0) == (target == 1);
    return std::max(s, 0.0) - s * static_cast<double>(target) + std::log1p(other);
  }
  const double own = score[target];
  const Softmax of_row = softmax(score, outputs);
  right = of_row.largest == target;
  score[target] -= 1;
  return of_row.log_sum - own;
}

/// Parameters, float64: coefficients (M, D), intercepts (M), mean (D). Scores are z coefficients^T
/// + intercepts. Partial: the gradient of the loss (M, D + 1), with the derivative by the intercept
/// last; the loss (). The last tensor counts the rows whose class has the highest score, (). Every
/// term has the factor of its row's weight.
jobs::Partial gradient_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const auto data = jobs::rows_of(shard);
  const auto* y = data[RegressionData::kTarget].const_data_ptr<int64_t>();
  const double* weight = weights_of(data);
  const int64_t outputs = parameters[0].size(0), dim = parameters[0].size(1);
  const at::Tensor weights = parameters[0].t().contiguous();  // (D, M)
  const auto* intercepts = parameters[1].const_data_ptr<double>();
  const at::Tensor gradient = at::zeros({outputs, dim + 1}, at::kDouble);
  std::vector<double> scores(static_cast<size_t>(kBlockRows * outputs));
  double loss = 0, hits = 0;
  for_blocks(shard, parameters[2], [&](int64_t begin, int64_t rows, const double* z) {
    for (int64_t i = 0; i < rows; ++i)
      std::copy_n(intercepts, outputs, scores.data() + i * outputs);
    add_product({.a = z,
                 .a_row = dim + 1,
                 .a_column = 1,
                 .b = weights.const_data_ptr<double>(),
                 .b_row = outputs,
                 .c = scores.data(),
                 .c_row = outputs,
                 .m = rows,
                 .n = outputs,
                 .k = dim});
    for (int64_t i = 0; i < rows; ++i) {
      bool right = false;
      double* score = scores.data() + i * outputs;
      const double own = weight == nullptr ? 1 : weight[begin + i];
      loss += own * derive(score, outputs, y[begin + i], right);
      hits += right ? own : 0;
      if (weight != nullptr)
        for (int64_t m = 0; m < outputs; ++m) score[m] *= own;
    }
    add_product({.a = scores.data(),
                 .a_row = 1,
                 .a_column = outputs,
                 .b = z,
                 .b_row = dim + 1,
                 .c = gradient.mutable_data_ptr<double>(),
                 .c_row = dim + 1,
                 .m = outputs,
                 .n = dim + 1,
                 .k = rows});
  });
  return {{gradient, at::scalar_tensor(loss, at::kDouble), at::scalar_tensor(hits, at::kDouble)},
          weight_of(weight, shard.size)};
}

const jobs::TaskRegistration kWeightedMoments("regression.moments", at::kCPU,
                                              weighted_moments_task);
const jobs::TaskRegistration kProducts("linear.products", at::kCPU, products_task);
const jobs::TaskRegistration kResiduals("linear.residuals", at::kCPU, residuals_task);
const jobs::TaskRegistration kGradient("logistic.gradient", at::kCPU, gradient_task);

}  // namespace
}  // namespace dovetail::fit
