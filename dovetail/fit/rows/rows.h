#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dovetail::fit {

/// What every job on rows of numbers begins with. `who` stands in messages.

/// UserError unless x is a contiguous float32 matrix on the CPU of at least one row and one column.
const at::Tensor& check_rows(const char* who, const at::Tensor& x);

/// A point (D) float32 near the rows: the mean of some of them, evenly spread. Differences to it
/// keep the digits that large numbers close to each other would lose.
at::Tensor near_point(const at::Tensor& x);

/// Rows that a task takes at a time, so that their differences to a point stay in a cache.
constexpr int64_t kBlockRows = 256;

/// y = x - point in float64, of rows (rows, dim) float32 that lie `dim` apart; those of y lie y_row
/// apart.
inline void subtract_point(const float* x, const double* point, int64_t rows, int64_t dim,
                           double* y, int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t p = 0; p < dim; ++p)
      y[i * y_row + p] = static_cast<double>(x[i * dim + p]) - point[p];
}

/// Names the first value of x that is not finite.
[[noreturn]] void refuse_values(const char* who, const at::Tensor& x);

}  // namespace dovetail::fit
