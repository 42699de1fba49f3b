#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dovetail::fit {

/// Checks and preparation that all jobs on rows of numbers share. `who` names the job in messages.

/// Returns x. Throws UserError unless x is a contiguous float32 matrix on the CPU with at least one
/// row and one column.
const at::Tensor& check_rows(const char* who, const at::Tensor& x);

/// Returns a point (D) float32 near the rows: the mean of a subset of evenly spaced rows.
/// Differences to it keep the digits that large numbers close to each other would lose.
at::Tensor near_point(const at::Tensor& x);

/// Rows that a task processes at a time, so that their differences to a point stay in a cache.
constexpr int64_t kBlockRows = 256;

/// Computes y = x - point in float64 for rows x (rows, dim) float32, which are contiguous. Rows of
/// y are y_row elements apart.
inline void subtract_point(const float* x, const double* point, int64_t rows, int64_t dim,
                           double* y, int64_t y_row) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t p = 0; p < dim; ++p)
      y[i * y_row + p] = static_cast<double>(x[i * dim + p]) - point[p];
}

/// Throws UserError that names row and column of the first value of x that is not finite. If all
/// values are finite, the error says that they are too large.
[[noreturn]] void refuse_values(const char* who, const at::Tensor& x);

}  // namespace dovetail::fit
