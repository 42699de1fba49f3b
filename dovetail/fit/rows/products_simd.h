#pragma once

#include <cstdint>

namespace dovetail::fit {

/// Operands of `add_product` in float64. Element (i, p) of a is a[i * a_row + p * a_column]. Rows
/// of b and c are contiguous; consecutive rows are b_row and c_row elements apart.
struct ProductProblem {
  const double* a;
  int64_t a_row, a_column;
  const double* b;
  int64_t b_row;
  double* c;
  int64_t c_row;
  int64_t m, n, k;
};

/// Computes c (m, n) += a (m, k) b (k, n) on the calling thread. Each element adds its products in
/// the order of k, with one rounding per product. So bits are the same on AVX2 and AVX-512, and for
/// any cut of k into calls.
void add_product(const ProductProblem& problem);

}  // namespace dovetail::fit
