#include "dovetail/fit/rows/dense.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dovetail::fit {

double sum_of_products(const at::Tensor& a, const at::Tensor& b) {
  const auto *x = a.const_data_ptr<double>(), *y = b.const_data_ptr<double>();
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) sum += x[i] * y[i];
  return sum;
}

at::Tensor product(const at::Tensor& matrix, const at::Tensor& vector) {
  at::Tensor result = at::empty({matrix.size(0)}, at::kDouble);
  for (int64_t i = 0; i < matrix.size(0); ++i)
    result.mutable_data_ptr<double>()[i] = sum_of_products(matrix[i], vector);
  return result;
}

Softmax softmax(double* scores, int64_t n) {
  const double* most = std::max_element(scores, scores + n);
  const int64_t index = most - scores;
  const double largest = *most;
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) sum += scores[k] = std::exp(scores[k] - largest);
  for (int64_t k = 0; k < n; ++k) scores[k] /= sum;
  return {index, largest + std::log(sum)};
}

Cholesky cholesky(const at::Tensor& matrix, double tolerance) {
  const at::Tensor a = matrix.contiguous();
  const int64_t n = a.size(0);
  Cholesky result{.lower = at::zeros({n, n}, at::kDouble)};
  const auto* from = a.const_data_ptr<double>();
  auto* lower = result.lower.mutable_data_ptr<double>();
  const auto left = [&](int64_t i, int64_t j) {
    double sum = from[i * n + j];
    for (int64_t p = 0; p < j; ++p) sum -= lower[i * n + p] * lower[j * n + p];
    return sum;
  };
  for (int64_t j = 0; j < n; ++j) {
    const double pivot = left(j, j);
    const bool depends = !(pivot > tolerance * from[j * n + j]);
    if (depends) result.dependent.push_back(j);
    lower[j * n + j] = depends ? 1 : std::sqrt(pivot);
    for (int64_t i = j + 1; i < n; ++i)
      lower[i * n + j] = depends ? 0 : left(i, j) / lower[j * n + j];
    if (depends)
      for (int64_t p = 0; p < j; ++p) lower[j * n + p] = 0;
  }
  return result;
}

at::Tensor inverse_of_lower(const at::Tensor& lower) {
  const int64_t n = lower.size(0);
  at::Tensor inverse = at::zeros({n, n}, at::kDouble);
  const auto* from = lower.const_data_ptr<double>();
  auto* to = inverse.mutable_data_ptr<double>();
  for (int64_t i = 0; i < n; ++i) {
    const double pivot = from[i * n + i];
    to[i * n + i] = 1 / pivot;
    for (int64_t p = 0; p < i; ++p)
      for (int64_t j = 0; j <= p; ++j) to[i * n + j] -= from[i * n + p] * to[p * n + j];
    for (int64_t j = 0; j < i; ++j) to[i * n + j] /= pivot;
  }
  return inverse;
}

Eigen eigen(const at::Tensor& matrix) {
  constexpr int kSweeps = 60;
  const at::Tensor work = matrix.clone(), turned = at::eye(matrix.size(0), at::kDouble);
  const int64_t n = matrix.size(0);
  auto *a = work.mutable_data_ptr<double>(), *v = turned.mutable_data_ptr<double>();
  bool done = false;
  for (int sweep = 0; !done && sweep < kSweeps; ++sweep) {
    done = true;
    for (int64_t p = 0; p < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) {
        const double off = a[p * n + q];
        const double own = std::max(std::abs(a[p * n + p]), std::abs(a[q * n + q]));
        if (std::abs(off) <= std::numeric_limits<double>::epsilon() * own) continue;
        done = false;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * off);
        const double t = std::copysign(1.0, theta) / (std::abs(theta) + std::hypot(theta, 1.0));
        const double c = 1 / std::hypot(t, 1.0), s = t * c;
        const auto turn = [&](double& x, double& y) {
          const double before = x;
          x = c * before - s * y;
          y = s * before + c * y;
        };
        for (int64_t i = 0; i < n; ++i) turn(a[i * n + p], a[i * n + q]);
        for (int64_t i = 0; i < n; ++i) turn(a[p * n + i], a[q * n + i]);
        for (int64_t i = 0; i < n; ++i) turn(v[i * n + p], v[i * n + q]);
      }
  }
  const auto [values, order] =
      at::sort(work.diagonal(), /*stable=*/true, /*dim=*/0, /*descending=*/true);
  return {values.contiguous(), turned.index_select(1, order)};
}

void orthonormalize(at::Tensor& columns) {
  const int64_t dim = columns.size(0);
  at::Tensor rows = columns.t().contiguous();
  for (int64_t i = 0, unit = 0; i < rows.size(0); ++i) {
    const at::Tensor row = rows[i];
    const double before = std::sqrt(sum_of_products(row, row));
    const auto rest = [&] {
      for (int again = 0; again < 2; ++again)  // two passes are enough (Parlett)
        for (int64_t j = 0; j < i; ++j) row.sub_(rows[j], sum_of_products(rows[j], row));
      return std::sqrt(sum_of_products(row, row));
    };
    double left = rest();
    constexpr double kNothing = 1e-12;
    while (!(left > kNothing * before) && unit < dim) {
      row.zero_();
      row[unit++].fill_(1);
      left = rest();
      if (left > 0.5 / std::sqrt(static_cast<double>(dim))) break;
    }
    row.div_(left);
  }
  columns = rows.t().contiguous();
}

}  // namespace dovetail::fit
