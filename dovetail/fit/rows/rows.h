#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dovetail/fit/rows/products_simd.h"

namespace dovetail::fit {

/// Checks and preparation of a matrix x of rows, shared by all algorithms in dovetail/fit/. `who`
/// names the algorithm in messages.

/// Returns x. Throws UserError unless x is a contiguous matrix on the CPU with at least one row and
/// one column. Its dtype must be float32, or also float64 if `takes_double`.
const at::Tensor& check_rows(const char* who, const at::Tensor& x, bool takes_double = false);

/// Returns a point (D) near the rows of x (N, D), of the dtype of x: the mean of about `rows`
/// evenly spaced rows. Algorithms subtract it from the rows first. Otherwise, large values close to
/// each other would lose digits.
at::Tensor near_point(const at::Tensor& x, int64_t rows = 4096);

/// Maximum number of rows in a task's call of subtract_point. It is small, so that the result stays
/// in a cache.
constexpr int64_t kBlockRows = 256;

/// Calls work(from) with a pointer to row `first` of x, whose dtype is float32 or float64.
template <class Work>
void with_rows(const at::Tensor& x, int64_t first, const Work& work) {
  const int64_t begin = first * x.size(1);
  x.scalar_type() == at::kDouble ? work(x.const_data_ptr<double>() + begin)
                                 : work(x.const_data_ptr<float>() + begin);
}

/// Sets each row of y (rows, D) float64 to a row of x minus `point` (D), from row `first` of x on.
/// x (N, D), float32 or float64, is contiguous. Consecutive rows of y are y_row elements apart.
inline void subtract_point(const at::Tensor& x, int64_t first, const double* point, int64_t rows,
                           double* y, int64_t y_row) {
  with_rows(x, first,
            [&](const auto* from) { subtract_point(from, point, rows, x.size(1), y, y_row); });
}

/// Throws UserError that names row and column of the first value of x that is not finite. If all
/// values are finite, the error says that they are too large. Call it if a sum over x is not
/// finite.
[[noreturn]] void refuse_values(const char* who, const at::Tensor& x);

}  // namespace dovetail::fit
