#pragma once

#include <cstdint>

namespace dovetail::fit {

/// Rows to assign, D = `dim` float32 each, one after another; K = `num_centres`.
struct AssignProblem {
  const float* x;         ///< (rows, D), finite
  const float* norm;      ///< (rows): at least |x - shift|, at most some ulp above
  const float* shift;     ///< (D): a point near the data
  const double* centres;  ///< (K, D)
  int64_t rows, dim, num_centres;
  int32_t* label;       ///< (rows), before and after
  double* sums;         ///< (K, sums_stride), added to; what is beyond D becomes anything
  int64_t sums_stride;  ///< a multiple of kSumsPadding, at least D
  int64_t* counts;      ///< (K), added to
};
constexpr int64_t kSumsPadding = 8;

/// The largest K: centres are counted in float32.
constexpr int64_t kMaxCentres = int64_t{1} << 24;

/// Lloyd's assignment and the sums of the rows of each centre, in one pass over the rows. Returns
/// how many labels changed. On the calling thread.
///
/// The label is the centre of the smallest |x - c|^2 in float64, the first of equal ones. Found in
/// float32 from |c - shift|^2 - 2 (x - shift)(c - shift), with a bound on its rounding; rows for
/// which the bound leaves a doubt are compared again in float64. Sums add rows in their order. So
/// labels, sums and counts are the same bits on AVX2 and AVX-512, and for any cut of the work into
/// problems whose partials are added in order of the rows.
int64_t assign_rows(const AssignProblem& problem);

/// norm[i] (may be null) = |x_i - point|, rounded up, over `rows` rows; returns the sum of the
/// squares, in float64 in the order of the rows. Infinite or NaN exactly if a row is not finite.
double norms_from(const float* x, const float* point, int64_t rows, int64_t dim, float* norm);

/// squares[i] = |x_i - centres[label_i]|^2 in float64; returns their sum in the order of the rows.
double squared_distances(const float* x, const double* centres, const int32_t* label, int64_t rows,
                         int64_t dim, double* squares);

/// potentials[j] += the sum over the rows of min(closest_i, |x_i - point_j|^2), in the order of the
/// rows, for `count` points (count, D).
void add_potentials(const float* x, const double* points, int64_t count, int64_t rows, int64_t dim,
                    const double* closest, double* potentials);

/// closest_i = the smallest of itself and |x_i - point_j|^2 over the points; returns the sum of it.
double include_points(const float* x, const double* points, int64_t count, int64_t rows,
                      int64_t dim, double* closest);

}  // namespace dovetail::fit
