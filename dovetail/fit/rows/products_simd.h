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

/// Sets each row of y (rows, dim) to the row of x (rows, dim) minus `point` (dim). Consecutive rows
/// of y are y_row elements apart.
void subtract_point(const float* x, const double* point, int64_t rows, int64_t dim, double* y,
                    int64_t y_row);
void subtract_point(const double* x, const double* point, int64_t rows, int64_t dim, double* y,
                    int64_t y_row);

/// Adds z^T z to `sum` (dim, dim), with z = x - point for rows x (rows, dim). Only the elements on
/// and above the diagonal are computed; the others become undefined. `point` has `dim` elements.
/// Each element adds its products in the order of the rows, with one rounding per product. So bits
/// are the same on AVX2 and AVX-512, and for any division of the rows into calls.
void add_squares(const float* x, const double* point, int64_t rows, int64_t dim, double* sum);
void add_squares(const double* x, const double* point, int64_t rows, int64_t dim, double* sum);

/// Number of rows over which add_squares packs z, and add_float_squares adds in float32.
constexpr int64_t kSquareBlock = 128;

/// Like add_squares, but `point` is float32 and z is rounded to float32. Products are added in
/// float32 over blocks of kSquareBlock rows, from the first row on. Blocks are added in float64.
/// With u = 2^-24, the error of an element is at most (kSquareBlock + 2) u sum |z_i z_j|. For rows
/// of random signs it is below 20 u / sqrt(number of blocks) of that sum. Bits are the same on AVX2
/// and AVX-512, and for any division of the rows into calls of whole blocks.
void add_float_squares(const float* x, const float* point, int64_t rows, int64_t dim, double* sum);

/// Adds the sum of y to `first` (dim), and the sum of y^2 to `second` (dim), with y = x - point for
/// rows x (rows, dim). Sums have the order and rounding of add_squares.
void add_moments(const float* x, const double* point, int64_t rows, int64_t dim, double* first,
                 double* second);
void add_moments(const double* x, const double* point, int64_t rows, int64_t dim, double* first,
                 double* second);

}  // namespace dovetail::fit
