#pragma once

#include <cstdint>
#include <functional>

namespace dovetail::fit {

/// Arguments of assign_rows. `rows` rows have D = `dim` columns each; there are K = `num_centres`
/// centres. All arrays are contiguous; only the rows of `sums` are padded. The label of a row is
/// the index of its nearest centre.
struct AssignProblem {
  const float* x;         ///< (rows, D), finite
  const float* norm;      ///< (rows): |x - shift|, rounded up by at most a few ulp
  const float* shift;     ///< (D): a point near the data
  const double* centres;  ///< (K, D)
  int64_t rows, dim, num_centres;
  /// (rows): factor of each row in the sums; null: 1, with the same bits as weights of 1
  const double* weight = nullptr;
  int32_t* label;  ///< (rows): previous labels, replaced by the new ones
  int64_t grain;   ///< rows are summed in pieces of this size; the last may be shorter
  /// Called at the beginning of each piece. Returns an array (K, sums_stride). The rows of the
  /// piece with label k, times their weights, are added to row k.
  std::function<double*()> next_sums;
  int64_t sums_stride;  ///< row stride of the sums: a multiple of kSumsPadding, at least D
  int64_t* counts;      ///< (K): the number of rows with label k is added to counts[k]
};
/// AssignProblem::sums_stride must be a multiple of this number. Columns of the sums from D on
/// become undefined.
constexpr int64_t kSumsPadding = 8;

/// Maximum number of centres: their indices are held in float32, which is exact up to 2^24.
constexpr int64_t kMaxCentres = int64_t{1} << 24;

/// Sets the label of each row to its nearest centre, and adds up the rows with each label. Takes
/// one pass over the rows, on the calling thread. Returns the number of changed labels.
///
/// The label of a row x (D) is the centre c (D) with the smallest |x - c|^2 in float64. If several
/// distances are equal, it is the first of these centres. Centres are first compared in float32 by
/// the score below. Its last term is a scalar product.
///
///     |c - shift|^2 - 2 (x - shift)(c - shift),
///
/// The comparison uses a bound on the rounding error of the score. If the bound does not prove
/// which centre is nearest, the row is compared in float64. The rows of a piece are added to its
/// sums in their order. So labels, sums and counts have the same bits on AVX2 and AVX-512. A call
/// may take any of the pieces.
int64_t assign_rows(const AssignProblem& problem);

// In the functions below, x_i is row i of x (rows, dim) float32. Row i has the weight w_i, an
// element of `weight` (rows). If `weight` is null, all weights are 1.

/// Sets norm[i] to |x_i - point|, rounded up, for each row; `norm` may be null. Returns the sum of
/// w_i |x_i - point|^2, in float64 in the order of the rows. If no weight overflows the sum, it is
/// infinite or NaN if and only if a row is not finite.
double norms_from(const float* x, const float* point, int64_t rows, int64_t dim, float* norm,
                  const double* weight = nullptr);

/// Sets squares[i] to |x_i - centres[label[i]]|^2 in float64 for each row. `centres` is (K, dim).
/// Returns the sum of w_i squares[i], in the order of the rows.
double squared_distances(const float* x, const double* centres, const int32_t* label, int64_t rows,
                         int64_t dim, double* squares, const double* weight = nullptr);

/// Returns the smallest |x - points[j]|^2 in float64. x has `dim` columns, `points` is (count,
/// dim). Without points, returns infinity.
double smallest_square(const float* x, const double* points, int64_t count, int64_t dim);

/// Arguments of include_points. `rows` rows have `dim` columns each. All arrays are contiguous.
struct ClosestProblem {
  const float* x;        ///< (rows, dim), finite
  const float* norm;     ///< (rows): |x_i - shift| from norms_from
  const float* shift;    ///< (dim): a point near the data
  const double* points;  ///< (count, dim): first the points to include, then candidates
  int64_t rows, dim, count;
  int64_t included;  ///< number of points to include
  int64_t grain;     ///< rows are summed in pieces of this size; the last may be shorter
  double* closest;   ///< (rows): squared distance to the closest chosen point; may be infinite
  const double* weight = nullptr;  ///< (rows); null: 1, with the same bits as weights of 1
  /// Called at the beginning of each piece. Returns an array of zeros for its sums. The size is a
  /// multiple of kSumsPadding, at least max(1, count - included).
  std::function<double*()> next_sums;
};

/// First replaces closest[i] by min(closest[i], |x_i - point_j|^2 for all included points j), for
/// each row. Then sets a sum for each piece and candidate j. It adds w_i min(closest[i], |x_i -
/// point_j|^2) over the rows i of the piece, in their order. k-means++ compares candidates by these
/// sums. Without candidates, the only sum is of w_i closest[i]. Further
/// elements of the sums become undefined.
///
/// Takes one pass over the rows. Distances that matter are in float64, so results have the same
/// bits on AVX2 and AVX-512.
void include_points(const ClosestProblem& problem);

}  // namespace dovetail::fit
