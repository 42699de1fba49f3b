#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/fit/rows/products_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>

#include "dovetail/fit/rows/products_simd.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::fit {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using ProductTag = hn::ScalableTag<double>;

constexpr int64_t kWide = HWY_LANES(double);
constexpr int64_t kPanel = 2 * kWide;

/// Computes kRows rows of c from (i, j) on, `columns` (1 to kPanel) wide. With six rows, twelve
/// sums hide the latency of an FMA.
template <int kRows>
HWY_INLINE void add_tile(const ProductProblem& p, int64_t i, int64_t j, int64_t columns) {
  const ProductTag d;
  const auto left = static_cast<size_t>(std::min(columns, kWide)),
             right = static_cast<size_t>(columns) - left;
  const auto first = hn::FirstN(d, left), second = hn::FirstN(d, right);
  hn::Vec<ProductTag> sum[kRows][2];
  double* c = p.c + i * p.c_row + j;
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = hn::MaskedLoad(first, d, c + r * p.c_row);
    sum[r][1] = hn::MaskedLoad(second, d, c + r * p.c_row + kWide);
  }
  const double *a = p.a + i * p.a_row, *b = p.b + j;
  for (int64_t q = 0; q < p.k; ++q, a += p.a_column, b += p.b_row) {
    const auto b0 = hn::MaskedLoad(first, d, b), b1 = hn::MaskedLoad(second, d, b + kWide);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const auto element = hn::Set(d, a[r * p.a_row]);
      sum[r][0] = hn::MulAdd(element, b0, sum[r][0]);
      sum[r][1] = hn::MulAdd(element, b1, sum[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    hn::BlendedStore(sum[r][0], first, d, c + r * p.c_row);
    hn::BlendedStore(sum[r][1], second, d, c + r * p.c_row + kWide);
  }
}

void AddProduct(const ProductProblem& p) {
  for (int64_t j = 0; j < p.n; j += kPanel) {
    const int64_t columns = std::min(kPanel, p.n - j);
    int64_t i = 0;
    for (; i + 6 <= p.m; i += 6) add_tile<6>(p, i, j, columns);
    for (; i < p.m; ++i) add_tile<1>(p, i, j, columns);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::fit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::fit {

HWY_EXPORT(AddProduct);

void add_product(const ProductProblem& problem) { HWY_DYNAMIC_DISPATCH(AddProduct)(problem); }

}  // namespace dovetail::fit
#endif
