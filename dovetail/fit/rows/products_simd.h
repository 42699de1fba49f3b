#pragma once

#include <cstdint>

namespace dovetail::fit {

/// Matrices of float64. Element (i, p) of a is a[i * a_row + p * a_column]; rows of b and c are
/// b_row and c_row apart.
struct ProductProblem {
  const double* a;
  int64_t a_row, a_column;
  const double* b;
  int64_t b_row;
  double* c;
  int64_t c_row;
  int64_t m, n, k;
};

/// c (m, n) += a (m, k) b (k, n), on the calling thread. Each element adds its products in the
/// order of k, rounded once each: the same bits on AVX2 and AVX-512, and however k is cut into
/// calls.
void add_product(const ProductProblem& problem);

}  // namespace dovetail::fit
