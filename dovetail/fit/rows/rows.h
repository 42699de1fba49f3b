#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dovetail::fit {

/// Checks and preparation of a matrix x of rows, shared by all algorithms in dovetail/fit/. `who`
/// names the algorithm in messages.

/// Returns x. Throws UserError unless x is a contiguous float32 matrix on the CPU with at least one
/// row and one column.
const at::Tensor& check_rows(const char* who, const at::Tensor& x);

/// Returns a point (D) float32 near the rows of x (N, D): the mean of some evenly spaced rows.
/// Algorithms subtract it from the rows first. Otherwise, large values close to each other would
/// lose digits.
at::Tensor near_point(const at::Tensor& x);

/// Maximum number of rows in a task's call of subtract_point. It is small, so that the result stays
/// in a cache.
constexpr int64_t kBlockRows = 256;

/// Sets each row of y (rows, dim) float64 to the row of x minus `point` (dim). x (rows, dim)
/// float32 is contiguous. Consecutive rows of y are y_row elements apart.
inline void subtract_point(const float* x, const double* point, int64_t rows, int64_t dim,
                           double* y, int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t p = 0; p < dim; ++p)
      y[i * y_row + p] = static_cast<double>(x[i * dim + p]) - point[p];
}

/// Throws UserError that names row and column of the first value of x that is not finite. If all
/// values are finite, the error says that they are too large. Call it if a sum over x is not
/// finite.
[[noreturn]] void refuse_values(const char* who, const at::Tensor& x);

}  // namespace dovetail::fit
