// Functions that search the nearest centre of each row. Scores order the centres by their distance
// to a row, with a bound of the scores' rounding error. Squared distances are in float64.
// Compiled once per instruction set: included by *_simd.cpp after simd_config.h, through
// foreach_target.
#if defined(DOVETAIL_FIT_KMEANS_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_FIT_KMEANS_SCORES_INL_H_
#undef DOVETAIL_FIT_KMEANS_SCORES_INL_H_
#else
#define DOVETAIL_FIT_KMEANS_SCORES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dovetail/fit/kmeans/assign_simd.h"
#include "dovetail/fit/rows/float64_inl.h"
#include "dovetail/ops/micro_kernel_inl.h"
#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::fit {
namespace HWY_NAMESPACE {

using namespace ops::HWY_NAMESPACE;

// Terms: x (D) is a row of float32, c (D) a centre. `shift` (D) is the fixed point of
// AssignProblem. y = x - shift and d = c - shift. y d is the scalar product of y and d. A label is
// the index of a row's nearest centre.

// Number of vectors with eight float64 in total. Float64 sums use eight lanes on every instruction
// set, which are then added in one fixed order.
constexpr int kWays = static_cast<int>(8 / kDoubles);

/// Returns |x - point|^2 in float64; x and `point` have `dim` elements.
template <class T>
HWY_INLINE double squared_distance(const float* x, const T* point, int64_t dim) {
  DoubleVector sums[kWays];
  const auto add = [&](int v, DoubleVector row, DoubleVector at) HWY_ATTR {
    const DoubleVector difference = hn::Sub(row, at);
    sums[v] = hn::MulAdd(difference, difference, sums[v]);
  };
#pragma GCC unroll 8
  for (int v = 0; v < kWays; ++v) sums[v] = hn::Zero(DoubleTag());
  int64_t p = 0;
  for (; p + 8 <= dim; p += 8)
#pragma GCC unroll 8
    for (int v = 0; v < kWays; ++v)
      add(v, widen(x + p + v * kDoubles), widen(point + p + v * kDoubles));
  // Constant indices keep the sums in registers.
#pragma GCC unroll 8
  for (int v = 0; v < kWays; ++v, p += kDoubles) {
    const int64_t left = dim - p;
    if (left >= kDoubles)
      add(v, widen(x + p), widen(point + p));
    else if (left > 0)
      add(v, widen(x + p, static_cast<size_t>(left)), widen(point + p, static_cast<size_t>(left)));
  }
  double s[8];
  for (int v = 0; v < kWays; ++v) hn::StoreU(sums[v], DoubleTag(), s + v * kDoubles);
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

// Scores. For each row, centres are compared in float32 by their scores. The lower the score, the
// nearer the centre:
//
//   score = |d|^2 - 2 y d - e,   e = g |d| (2 |y| + |d|)
//
// Without e, this is |x - c|^2 - |y|^2. The bound e covers the rounding of the float32 arithmetic:
// g = n u / (1 - n u) for n = D + 8 roundings of unit u = 2^-24 (Higham, Accuracy and Stability of
// Numerical Algorithms, 3.1). One rounding each is for y, d, |d|^2 and the terms of e. The other
// roundings occur in the sum, in any order of its terms. So a computed score never exceeds the
// exact |x - c|^2 - |y|^2, and it is smaller by at most 2 e. The centre with the lowest score is
// called the best centre. It is proven to be the nearest if its score + 2 e is below all other
// scores.

/// Centres in the layout that the loops below and in nearest_inl.h read. A score is linear in y,
/// |y| and 1; its factors are stored.
///
/// If `as_rows` is false (many centres), `packed` holds strips of `in_strip` centres, at most
/// kTileRows: [strip][D + 2][kTileRows]. The last strip may have fewer centres. The D + 2 terms are
/// the factors -2 d of y, then the factors of |y| and of 1. If `as_rows` is true (few centres),
/// `packed` holds -2 d as rows: [K][row_floats].
class Centres {
 public:
  Centres(const AssignProblem& p, bool as_rows, int64_t in_strip = kTileRows)
      : row_floats(ceil_to_lanes(p.dim)), length_(static_cast<size_t>(p.num_centres)) {
    const int64_t k = p.num_centres, dim = p.dim;
    strip_floats = (dim + 2) * kTileRows;
    const int64_t floats = as_rows ? k * row_floats : (k + in_strip - 1) / in_strip * strip_floats;
    packed = hwy::AllocateAligned<float>(static_cast<size_t>(floats));
    std::fill_n(packed.get(), floats, 0.0f);
    shift = hwy::AllocateAligned<float>(static_cast<size_t>(row_floats));
    std::fill(std::copy_n(p.shift, dim, shift.get()), shift.get() + row_floats, 0.0f);
    constexpr double kUnit = 0x1p-24;
    const double roundings = static_cast<double>(dim + 8) * kUnit;
    const double g =
        roundings < 0.5 ? roundings / (1 - roundings) : std::numeric_limits<double>::infinity();
    twice_g_ = static_cast<float>(2 * g * (1 + 4 * kUnit));
    for (int64_t c = 0; c < k; ++c) {
      float* to = as_rows ? row(c) : packed.get() + c / in_strip * strip_floats + c % in_strip;
      const int64_t step = as_rows ? 1 : kTileRows;
      double square = 0;
      for (int64_t j = 0; j < dim; ++j) {
        const double d = p.centres[c * dim + j] - static_cast<double>(p.shift[j]);
        square += d * d;
        to[j * step] = static_cast<float>(-2 * d);
      }
      const double length = std::sqrt(square);
      slope.push_back(static_cast<float>(-2 * g * length * (1 + 4 * kUnit)));
      base.push_back(static_cast<float>(square - g * square) - kUnderflow);
      length_[static_cast<size_t>(c)] = static_cast<float>(length * (1 + 2 * kUnit));
      longest_ = std::max(longest_, length_[static_cast<size_t>(c)]);
      if (as_rows) continue;
      to[dim * step] = slope.back();
      to[(dim + 1) * step] = base.back();
    }
  }

  /// Returns -2 d of centre c, if as_rows.
  const float* row(int64_t c) const { return packed.get() + c * row_floats; }
  float* row(int64_t c) { return packed.get() + c * row_floats; }

  /// Returns the maximum of 2 e over all centres, for rows with |y| = `norm`.
  FloatVector doubt(FloatVector norm) const {
    const FloatVector longest = splat(longest_);
    return hn::MulAdd(hn::Mul(longest, splat(twice_g_)), hn::MulAdd(splat(2.0f), norm, longest),
                      splat(kUnderflow));
  }
  /// Returns 2 e for a row with |y| = `norm` and this centre.
  float doubt(float norm, int32_t centre) const {
    const float length = length_[static_cast<size_t>(centre)];
    return twice_g_ * length * (2 * norm + length) + kUnderflow;
  }

  int64_t row_floats, strip_floats = 0;  ///< number of floats in a row, and in a strip
  hwy::AlignedFreeUniquePtr<float[]> packed, shift;
  std::vector<float> slope, base;  ///< factors of |y| and of 1 in the score of each centre

 private:
  static int64_t ceil_to_lanes(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }
  /// Upper bound of the error from products that underflow.
  static constexpr float kUnderflow = 1e-34f;

  std::vector<float> length_;  ///< |d| of each centre, rounded up
  float longest_ = 0, twice_g_ = 0;
};

/// Lowest and second lowest score of each row. Each lane is a row. `index` is the number of the
/// centre with the lowest score, as a float.
struct Nearest {
  FloatVector best, second, index;
};
constexpr float kFar = std::numeric_limits<float>::infinity();

/// Updates `n` by the scores of one more centre; `centre` holds its number.
HWY_INLINE void take(FloatVector score, FloatVector centre, Nearest& n) {
  const auto closer = hn::Lt(score, n.best);
  n.second = hn::Min(n.second, hn::Max(score, n.best));
  n.best = hn::Min(score, n.best);
  n.index = hn::IfThenElse(closer, centre, n.index);
}

/// Like Nearest, for kTileColumns rows in memory.
struct NearestRows {
  HWY_ALIGN float best[kTileColumns], second[kTileColumns], index[kTileColumns];

  Nearest get(int64_t at) const { return {load(best + at), load(second + at), load(index + at)}; }
  void set(const Nearest& n, int64_t at) {
    store(n.best, best + at);
    store(n.second, second + at);
    store(n.index, index + at);
  }
};

/// Returns the index of the centre with the smallest |x - c|^2 in float64. Among equally near
/// centres, returns the first one.
HWY_NOINLINE int32_t exact_nearest(const AssignProblem& p, const float* x) {
  double best = std::numeric_limits<double>::infinity();
  int32_t nearest = 0;
  for (int64_t c = 0; c < p.num_centres; ++c) {
    const double square = squared_distance(x, p.centres + c * p.dim, p.dim);
    if (square < best) {
      best = square;
      nearest = static_cast<int32_t>(c);
    }
  }
  return nearest;
}

/// Corrects the nearest centres of `count` rows from row `begin` on. `best`, `second` and `index`
/// hold the members of Nearest for these rows. If the scores do not prove that index[i] is the
/// nearest centre, sets index[i] to the nearest centre in float64.
HWY_NOINLINE void settle(const AssignProblem& p, const Centres& centres, int64_t begin,
                         int64_t count, const float* best, const float* second, float* index) {
  for (int64_t i = 0; i < count; ++i) {
    if (!(best[i] + centres.doubt(p.norm[begin + i], static_cast<int32_t>(index[i])) < second[i]))
      index[i] = static_cast<float>(exact_nearest(p, p.x + (begin + i) * p.dim));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::fit
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
