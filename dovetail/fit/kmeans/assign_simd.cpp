#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/fit/kmeans/assign_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "dovetail/fit/kmeans/assign_simd.h"
#include "dovetail/fit/kmeans/nearest_inl.h"
#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::fit {
namespace HWY_NAMESPACE {

// Number of vectors of sums that stay in registers while rows are read.
constexpr int kSumVectors = kLanes >= 16 ? 16 : 8;

/// Weight 1 of each row.
struct UnitWeights {
  HWY_INLINE DoubleVector operator()(int64_t) const { return hn::Set(DoubleTag(), 1.0); }
};
/// Weights of the rows from `weight` on.
struct GivenWeights {
  const double* weight;
  HWY_INLINE DoubleVector operator()(int64_t row) const {
    return hn::Set(DoubleTag(), weight[row]);
  }
};
/// Calls body(weights) with the weights of the rows from row `begin` on.
template <class Body>
HWY_INLINE void with_weights(const double* weight, int64_t begin, const Body& body) {
  weight == nullptr ? body(UnitWeights()) : body(GivenWeights{weight + begin});
}

/// Adds the rows of x that `order` names, times their weights, to sums[0 ..]. Rows are `dim` floats
/// apart. The sums are kVectors vectors of float64, and the last vector has `last` columns.
template <int kVectors, class Weights, class Ask>
HWY_INLINE void add_columns(const float* x, int64_t dim, const int32_t* order, int64_t rows,
                            int64_t last, double* sums, const Weights& weights, const Ask& ask) {
  const DoubleTag d;
  const HalfTag half;
  const auto there = hn::FirstN(half, static_cast<size_t>(last));
  // x * 1 + s is s + x, but it runs on the multiply units. The add units are busy with the
  // conversion of x.
  DoubleVector s[kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) s[v] = hn::LoadU(d, sums + v * kDoubles);
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = x + order[i] * dim;
    const DoubleVector w = weights(order[i]);
    ask();
#pragma GCC unroll 16
    for (int v = 0; v < kVectors - 1; ++v) s[v] = hn::MulAdd(widen(from + v * kDoubles), w, s[v]);
    const auto tail = hn::MaskedLoad(there, half, from + (kVectors - 1) * kDoubles);
    s[kVectors - 1] = hn::MulAdd(hn::PromoteTo(d, tail), w, s[kVectors - 1]);
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) hn::StoreU(s[v], d, sums + v * kDoubles);
}

/// Calls `body` with the number of vectors, 1 to kSumVectors, as a constant.
template <class Body, int... kVectors>
HWY_INLINE void with_vectors(int64_t count, const Body& body,
                             std::integer_sequence<int, kVectors...>) {
  static_cast<void>((
      (count == kVectors + 1 && (body(std::integral_constant<int, kVectors + 1>()), true)) || ...));
}

/// Adds the rows of one centre, in their order, to sums (D). Calls ask() once for each row.
template <class Weights, class Ask>
HWY_INLINE void add_run(const float* x, int64_t dim, const int32_t* order, int64_t rows,
                        double* sums, const Weights& weights, const Ask& ask) {
  const auto none = [] {};
  int64_t column = 0;
  for (; column + kSumVectors * kDoubles < dim; column += kSumVectors * kDoubles)
    add_columns<kSumVectors>(x + column, dim, order, rows, kDoubles, sums + column, weights, none);
  const int64_t vectors = (dim - column + kDoubles - 1) / kDoubles;
  with_vectors(
      vectors,
      [&](auto count) HWY_ATTR {
        add_columns<count()>(x + column, dim, order, rows, dim - column - (vectors - 1) * kDoubles,
                             sums + column, weights, ask);
      },
      std::make_integer_sequence<int, kSumVectors>());
}

/// Returns the rows per block. A block is read from memory for the labels, and from a cache for the
/// sums.
int64_t block_rows(int64_t dim) {
  constexpr int64_t kBlockFloats = 8192;
  return std::clamp(kBlockFloats / dim / kTileColumns * kTileColumns, kTileColumns, int64_t{256});
}

/// Calls body(begin, count, sums) for blocks of at most `block` rows that lie within one piece.
template <class Body>
HWY_INLINE void for_blocks(const AssignProblem& p, int64_t block, const Body& body) {
  for (int64_t first = 0; first < p.rows; first += p.grain) {
    const int64_t end = std::min(first + p.grain, p.rows);
    double* sums = p.next_sums();
    for (int64_t begin = first; begin < end; begin += block)
      body(begin, std::min(block, end - begin), sums);
  }
}

int64_t assign_to_many(const AssignProblem& p) {
  const Centres centres(p, /*as_rows=*/false);
  const auto rows = hwy::AllocateAligned<float>(static_cast<size_t>((p.dim + 2) * kTileColumns));
  const int64_t block = block_rows(p.dim);
  NearestRows nearest;
  int64_t changed = 0;
  for_blocks(p, block, [&](int64_t begin, int64_t count, double* sums) HWY_ATTR {
    const int64_t end = begin + count;
    for (int64_t i = begin; i < end; i += kTileColumns)
      changed += label_of_many(p, centres, i, std::min(kTileColumns, end - i), rows.get(), nearest);
    const int32_t first = 0;
    with_weights(p.weight, 0, [&](const auto& weights) HWY_ATTR {
      for (int64_t i = begin; i < end; ++i)
        add_run(
            p.x + i * p.dim, p.dim, &first, 1, sums + p.label[i] * p.sums_stride,
            [&](int64_t) HWY_ATTR { return weights(i); }, [] {});
    });
  });
  return changed;
}

#if HWY_TARGET != HWY_SCALAR
int64_t assign_to_few(const AssignProblem& p) {
  const Centres centres(p, /*as_rows=*/true);
  const int64_t block = block_rows(p.dim);
  const auto label_rows =
      label_kernel_of(p.num_centres, std::make_integer_sequence<int, kFewCentres>());
  RowsByLabel by_label;
  int64_t changed = 0;
  for_blocks(p, block, [&](int64_t begin, int64_t count, double* sums) HWY_ATTR {
    const float* x = p.x + begin * p.dim;
    std::fill_n(by_label.count, p.num_centres, 0);
    ReadAhead ahead{x + block * p.dim, x + 2 * block * p.dim};
    changed += label_rows(p, centres, begin, count, by_label, ahead);
    const int lines = ahead.lines_for_each(count);
    with_weights(p.weight, begin, [&](const auto& weights) HWY_ATTR {
      for (int64_t c = 0; c < p.num_centres; ++c) {
        p.counts[c] += by_label.count[c];
        add_run(x, p.dim, by_label.row[c], by_label.count[c], sums + c * p.sums_stride, weights,
                [&] HWY_ATTR { ahead.ask(lines); });
      }
    });
  });
  return changed;
}
#endif

int64_t AssignRows(const AssignProblem& p) {
#if HWY_TARGET != HWY_SCALAR
  if (p.num_centres <= kFewCentres && p.dim >= kLanes) return assign_to_few(p);
#endif
  return assign_to_many(p);
}

double NormsFrom(const float* x, const float* point, int64_t rows, int64_t dim, float* norm,
                 const double* weight) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const double square = squared_distance(x + i * dim, point, dim);
    sum = weight == nullptr ? sum + square : std::fma(weight[i], square, sum);
    if (norm) norm[i] = static_cast<float>(std::sqrt(square) * (1 + 0x1p-22));
  }
  return sum;
}

double SquaredDistances(const float* x, const double* centres, const int32_t* label, int64_t rows,
                        int64_t dim, double* squares, const double* weight) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    squares[i] = squared_distance(x + i * dim, centres + label[i] * dim, dim);
    sum = weight == nullptr ? sum + squares[i] : std::fma(weight[i], squares[i], sum);
  }
  return sum;
}

// k-means++ lowers closest[i], the squared distance of row i to the closest chosen point. Most
// points are farther from most rows. Their scores in float32 prove it (scores_inl.h): a score never
// exceeds |x - c|^2 - |y|^2. The other distances are computed in float64.

/// Sets limits for `count` rows from row `begin` on. A point whose score is at least limit[i] is no
/// closer than closest[begin + i]. |y|^2 is bounded from below by norm, which is at most 1 + 2^-21
/// times |y|.
HWY_INLINE void set_limits(const ClosestProblem& p, int64_t begin, int64_t count, float* limit) {
  const DoubleTag d;
  const HalfTag half;
  for (int64_t i = 0; i < count; i += kDoubles) {
    const auto rows = static_cast<size_t>(count - i);
    const DoubleVector closest = widen(p.closest + begin + i, rows),
                       norm = widen(p.norm + begin + i, rows);
    const DoubleVector square = hn::Mul(hn::Mul(norm, norm), hn::Set(d, 1 - 0x1p-20));
    const auto value = hn::DemoteTo(half, hn::MulSub(closest, hn::Set(d, 1 + 0x1p-30), square));
    const auto up = hn::MulAdd(hn::Abs(value), hn::Set(half, 0x1p-22f), hn::Set(half, 1e-37f));
    hn::StoreU(hn::Add(value, up), half, limit + i);
  }
}

/// Scores of a tile of rows for all points, compared with the limits of its rows.
class Screen {
 public:
  explicit Screen(const ClosestProblem& p)
      : problem_(p),
        assign_{.x = p.x,
                .norm = p.norm,
                .shift = p.shift,
                .centres = p.points,
                .rows = p.rows,
                .dim = p.dim,
                .num_centres = p.count},
        centres_(assign_, /*as_rows=*/false),
        rows_(hwy::AllocateAligned<float>(static_cast<size_t>((p.dim + 2) * kTileColumns))) {}

  /// Calls take(i, c, square) for each row begin + i of the tile and each point c that may be
  /// closer than closest[begin + i]. `square` is its squared distance. Points are in ascending
  /// order for each row.
  template <class Take>
  HWY_INLINE void for_each_close(int64_t begin, int64_t count, const Take& take) {
    const ClosestProblem& p = problem_;
    HWY_ALIGN float limit[kTileColumns], score[kTileRows * kTileColumns];
    set_limits(p, begin, count, limit);
    std::fill(limit + count, limit + kTileColumns, -kFar);
    place_tile(assign_, centres_, begin, count, rows_.get());
    const float* strip = centres_.packed.get();
    for (int64_t c = 0; c < p.count; c += kTileRows, strip += centres_.strip_floats) {
      const int64_t points = std::min<int64_t>(kTileRows, p.count - c);
      const uint64_t close = close_rows_of(points)(p.dim + 2, strip, rows_.get(), limit, score);
      for (int64_t i = 0; i < count && close >> i != 0; ++i) {
        if ((close >> i & 1) == 0) continue;
        for (int64_t k = 0; k < points; ++k)
          if (!is_far(score[k * kTileColumns + i], limit[i]))
            take(i, c + k,
                 squared_distance(p.x + (begin + i) * p.dim, p.points + (c + k) * p.dim, p.dim));
      }
    }
  }

 private:
  /// Returns true if a score proves that its point is no closer. Numbers that overflow prove
  /// nothing.
  static bool is_far(float score, float limit) {
    return limit < kFar && score >= limit && score < kFar;
  }

  using CloseRows = uint64_t (*)(int64_t, const float*, const float*, const float*, float*);

  /// Sets the scores of a tile for the kPoints points of a strip. Returns the rows for which not
  /// all points are far, as bits.
  template <int kPoints>
  static HWY_NOINLINE uint64_t close_rows(int64_t terms, const float* strip, const float* rows,
                                          const float* limit, float* score) {
    const Tile<kPoints> tile = multiply<kPoints, 1>(terms, strip, kTileRows, rows, kTileColumns);
    const FloatTag d;
    uint64_t out = 0;
#pragma GCC unroll 2
    for (int j = 0; j < kTileVectors; ++j) {
      const FloatVector bound = load(limit + j * kLanes);
      auto far = hn::Lt(bound, splat(kFar));
#pragma GCC unroll 16
      for (int c = 0; c < kPoints; ++c) {
        far = hn::And(far, hn::And(hn::Ge(tile.v[c][j], bound), hn::Lt(tile.v[c][j], splat(kFar))));
        store(tile.v[c][j], score + c * kTileColumns + j * kLanes);
      }
      uint8_t bits[8] = {};
      hn::StoreMaskBits(d, hn::Not(far), bits);
      out |= static_cast<uint64_t>(bits[0] | bits[1] << 8) << (j * kLanes);
    }
    return out;
  }
  template <int... kPoints>
  static CloseRows choose(int64_t points, std::integer_sequence<int, kPoints...>) {
    static constexpr CloseRows kAll[] = {close_rows<kPoints + 1>...};
    return kAll[points - 1];
  }
  static CloseRows close_rows_of(int64_t points) {
    return choose(points, std::make_integer_sequence<int, kTileRows>());
  }

  const ClosestProblem& problem_;
  const AssignProblem assign_;
  const Centres centres_;
  hwy::AlignedFreeUniquePtr<float[]> rows_;
};

/// Calls body(begin, count) for tiles of at most kTileColumns rows, and end(piece) after each
/// piece. A tile lies within one piece.
template <class Body, class End>
HWY_INLINE void for_tiles(const ClosestProblem& p, const Body& body, const End& end) {
  for (int64_t first = 0, piece = 0; first < p.rows; first += p.grain, ++piece) {
    const int64_t last = std::min(first + p.grain, p.rows);
    for (int64_t begin = first; begin < last; begin += kTileColumns)
      body(begin, std::min(kTileColumns, last - begin));
    end(piece);
  }
}

void AddPotentials(const ClosestProblem& p, const std::function<double*()>& next_sums) {
  const DoubleTag d;
  Screen screen(p);
  const int64_t width = (p.count + kDoubles - 1) / kDoubles * kDoubles;
  // Potentials of the tile's rows, [row][width], where a point is closer; and their sums.
  std::vector<double> lowered(static_cast<size_t>(kTileColumns * width)), sums(width);
  const auto add_tile = [&](int64_t begin, int64_t count) HWY_ATTR {
    const double* closest = p.closest + begin;
    uint64_t is_lowered = 0;
    screen.for_each_close(begin, count, [&](int64_t i, int64_t c, double square) HWY_ATTR {
      double* to = lowered.data() + i * width;
      if ((is_lowered >> i & 1) == 0) std::fill_n(to, width, closest[i]);
      is_lowered |= uint64_t{1} << i;
      to[c] = std::min(closest[i], square);
    });
    with_weights(p.weight, begin, [&](const auto& weights) HWY_ATTR {
      for (int64_t c = 0; c < width; c += kDoubles) {
        DoubleVector sum = hn::LoadU(d, sums.data() + c);
        for (int64_t i = 0; i < count; ++i)
          sum = hn::MulAdd((is_lowered >> i & 1) != 0 ? hn::LoadU(d, &lowered[i * width + c])
                                                      : hn::Set(d, closest[i]),
                           weights(i), sum);
        hn::StoreU(sum, d, sums.data() + c);
      }
    });
  };
  for_tiles(p, add_tile, [&](int64_t) {
    std::copy_n(sums.begin(), p.count, next_sums());
    std::fill(sums.begin(), sums.end(), 0.0);
  });
}

void IncludePoints(const ClosestProblem& p, double* sums) {
  Screen screen(p);
  double sum = 0;
  const auto lower_tile = [&](int64_t begin, int64_t count) HWY_ATTR {
    double* closest = p.closest + begin;
    screen.for_each_close(begin, count, [&](int64_t i, int64_t, double square) HWY_ATTR {
      closest[i] = std::min(closest[i], square);
    });
    for (int64_t i = 0; i < count; ++i)
      sum = p.weight == nullptr ? sum + closest[i] : std::fma(p.weight[begin + i], closest[i], sum);
  };
  for_tiles(p, lower_tile, [&](int64_t piece) { sums[piece] = std::exchange(sum, 0.0); });
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::fit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::fit {

HWY_EXPORT(AssignRows);
HWY_EXPORT(NormsFrom);
HWY_EXPORT(SquaredDistances);
HWY_EXPORT(AddPotentials);
HWY_EXPORT(IncludePoints);

int64_t assign_rows(const AssignProblem& problem) {
  return HWY_DYNAMIC_DISPATCH(AssignRows)(problem);
}

double norms_from(const float* x, const float* point, int64_t rows, int64_t dim, float* norm,
                  const double* weight) {
  return HWY_DYNAMIC_DISPATCH(NormsFrom)(x, point, rows, dim, norm, weight);
}

double squared_distances(const float* x, const double* centres, const int32_t* label, int64_t rows,
                         int64_t dim, double* squares, const double* weight) {
  return HWY_DYNAMIC_DISPATCH(SquaredDistances)(x, centres, label, rows, dim, squares, weight);
}

void add_potentials(const ClosestProblem& problem, const std::function<double*()>& next_sums) {
  HWY_DYNAMIC_DISPATCH(AddPotentials)(problem, next_sums);
}

void include_points(const ClosestProblem& problem, double* sums) {
  HWY_DYNAMIC_DISPATCH(IncludePoints)(problem, sums);
}

}  // namespace dovetail::fit
#endif
