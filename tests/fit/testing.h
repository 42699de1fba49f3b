#pragma once

#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "dovetail/fit/kmeans/kmeans.h"
#include "tests/ops/testing.h"

/// Common code of the k-means tests: its definition in float64, in plain loops.
namespace dovetail::fit::testing {

using namespace dovetail::testing;

inline double squared_distance(const float* x, const double* centre, int64_t dim) {
  double sum = 0;
  for (int64_t p = 0; p < dim; ++p) {
    const double difference = static_cast<double>(x[p]) - centre[p];
    sum += difference * difference;
  }
  return sum;
}

struct Reference {
  at::Tensor labels;  ///< (N) int32
  at::Tensor sums;    ///< (K, D) float64, rows added in their order
  at::Tensor counts;  ///< (K) int64
  double inertia = 0;
};

inline Reference assign_reference(const at::Tensor& x, const at::Tensor& centres) {
  const int64_t n = x.size(0), dim = x.size(1), k = centres.size(0);
  Reference r{at::empty({n}, at::kInt), at::zeros({k, dim}, at::kDouble),
              at::zeros({k}, at::kLong)};
  const auto* rows = x.const_data_ptr<float>();
  const auto* c = centres.const_data_ptr<double>();
  auto* sums = r.sums.mutable_data_ptr<double>();
  for (int64_t i = 0; i < n; ++i) {
    double best = std::numeric_limits<double>::infinity();
    int32_t label = 0;
    for (int64_t j = 0; j < k; ++j) {
      const double square = squared_distance(rows + i * dim, c + j * dim, dim);
      if (square < best) {
        best = square;
        label = static_cast<int32_t>(j);
      }
    }
    r.inertia += best;
    r.labels.mutable_data_ptr<int32_t>()[i] = label;
    ++r.counts.mutable_data_ptr<int64_t>()[label];
    for (int64_t p = 0; p < dim; ++p)
      sums[label * dim + p] += static_cast<double>(rows[i * dim + p]);
  }
  return r;
}

/// Returns clouds of points around `clouds` centres. Scales and offsets of the columns differ by
/// powers of ten.
inline at::Tensor raw_features(int64_t rows, int64_t dim, int64_t clouds, uint64_t seed) {
  const at::Tensor middle = normal({clouds, dim}, seed, at::kDouble) * 3;
  const at::Tensor which = at::arange(rows, at::kLong) * 7919 % clouds;
  const at::Tensor power = at::arange(dim, at::kDouble) % 7 - 3;
  const at::Tensor scale = at::pow(10.0, power);
  const at::Tensor offset = at::pow(10.0, at::arange(dim, at::kDouble) % 5 + 1);
  return (((middle.index_select(0, which) + normal({rows, dim}, seed + 1, at::kDouble)) + offset) *
          scale)
      .to(at::kFloat)
      .contiguous();
}

/// Returns `k` evenly spread rows as centres.
inline at::Tensor some_rows(const at::Tensor& x, int64_t k) {
  const at::Tensor which = at::arange(k, at::kLong) * x.size(0) / k;
  return x.index_select(0, which.to(at::kLong)).to(at::kDouble);
}

}  // namespace dovetail::fit::testing
