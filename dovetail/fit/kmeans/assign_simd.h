#pragma once

#include <cstdint>

namespace dovetail::fit {

/// Rows to assign to their nearest centres. A row has D = `dim` float32, and rows are contiguous. K
/// = `num_centres`.
struct AssignProblem {
  const float* x;         ///< (rows, D), finite
  const float* norm;      ///< (rows): |x - shift|, rounded up by at most a few ulp
  const float* shift;     ///< (D): a point near the data
  const double* centres;  ///< (K, D)
  int64_t rows, dim, num_centres;
  int32_t* label;       ///< (rows): previous labels, replaced by the new ones
  double* sums;         ///< (K, sums_stride), added to; columns from D on become undefined
  int64_t sums_stride;  ///< row stride of `sums`: a multiple of kSumsPadding, at least D
  int64_t* counts;      ///< (K), rows per centre, added to
};
constexpr int64_t kSumsPadding = 8;

/// Maximum K: centre numbers are held in float32, which is exact up to 2^24.
constexpr int64_t kMaxCentres = int64_t{1} << 24;

/// Assigns each row to its nearest centre and adds up the rows of each centre, in one pass. Runs on
/// the calling thread. Returns the number of changed labels.
///
/// The label is the centre with the smallest |x - c|^2 in float64; the first of equal ones is
/// taken. Candidates are compared in float32 by |c - shift|^2 - 2 (x - shift)(c - shift), with a
/// bound on the rounding error. Rows for which the bound leaves a doubt are compared again in
/// float64. Sums add rows in their order. So labels, sums and counts have the same bits on AVX2 and
/// AVX-512. The same holds however the rows are cut into problems, if partials are added in the
/// order of the rows.
int64_t assign_rows(const AssignProblem& problem);

/// Computes norm[i] = |x_i - point|, rounded up, for `rows` rows; `norm` may be null. Returns the
/// sum of |x_i - point|^2, in float64 in the order of the rows. The sum is infinite or NaN exactly
/// if a row is not finite.
double norms_from(const float* x, const float* point, int64_t rows, int64_t dim, float* norm);

/// Computes squares[i] = |x_i - centres[label_i]|^2 in float64. Returns their sum in the order of
/// the rows.
double squared_distances(const float* x, const double* centres, const int32_t* label, int64_t rows,
                         int64_t dim, double* squares);

/// Adds to potentials[j] the sum over the rows of min(closest_i, |x_i - point_j|^2), in the order
/// of the rows. There are `count` points (count, D).
void add_potentials(const float* x, const double* points, int64_t count, int64_t rows, int64_t dim,
                    const double* closest, double* potentials);

/// Replaces closest_i by the minimum of itself and |x_i - point_j|^2 over all points. Returns the
/// sum of closest_i.
double include_points(const float* x, const double* points, int64_t count, int64_t rows,
                      int64_t dim, double* closest);

}  // namespace dovetail::fit
