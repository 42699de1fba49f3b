#pragma once

#include <cstdint>

namespace dovetail::fit {

/// Operands of `add_product`: matrices a (m, k), b (k, n) and c (m, n). Element (i, p) of a is a[i
/// * a_row + p * a_column]. The elements of each row of b and c are contiguous. Consecutive rows
/// are b_row and c_row elements apart.
struct ProductProblem {
  const double* a;
  int64_t a_row, a_column;
  const double* b;
  int64_t b_row;
  double* c;
  int64_t c_row;
  int64_t m, n, k;
};

/// Adds the matrix product of a and b to c, on the calling thread. Each element of c adds its k
/// products in order, with one rounding per product. So bits are the same on AVX2 and AVX-512. They
/// are also the same if k is split into several calls.
void add_product(const ProductProblem& problem);

}  // namespace dovetail::fit
