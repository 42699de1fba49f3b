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

/// Returns the rows of a block of about `floats` floats. A block is read from memory for the
/// labels, and from a cache for the sums.
int64_t block_rows(int64_t dim, int64_t floats) {
  return std::clamp(floats / dim / kTileColumns * kTileColumns, kTileColumns, kMostBlockRows);
}
constexpr int64_t kAssignFloats = 8192;

/// Calls body(begin, count, sums) for blocks of at most `block` rows that lie within one piece.
template <class Problem, class Body>
HWY_INLINE void for_blocks(const Problem& p, int64_t block, const Body& body) {
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
  const int64_t block = block_rows(p.dim, kAssignFloats);
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
  const int64_t block = block_rows(p.dim, kAssignFloats);
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

double SmallestSquare(const float* x, const double* points, int64_t count, int64_t dim) {
  double smallest = std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < count; ++j)
    smallest = std::min(smallest, squared_distance(x, points + j * dim, dim));
  return smallest;
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

/// Search for the points that may be closer to rows than `closest`.
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
        in_strip_(ceil_of(p.count, ceil_of(p.count, kTileRows))),
        centres_(assign_, /*as_rows=*/false, in_strip_),
        rows_(hwy::AllocateAligned<float>(static_cast<size_t>((p.dim + 2) * kTileColumns))) {}

  /// Row `id % kMostBlockRows` of a block, and point `id / kMostBlockRows`.
  static int64_t row_of(int32_t id) { return id % kMostBlockRows; }
  static int64_t point_of(int32_t id) { return id / kMostBlockRows; }

  /// Lists the ids of all rows of a block and points that may be closer. For each row, points are
  /// in ascending order. The block has `count` rows from row `begin` on. `ids` has space for
  /// kMostBlockRows * (number of points) + kLanes ids. Returns their number.
  HWY_INLINE int64_t list_close(int64_t begin, int64_t count, int32_t* ids) {
    const ClosestProblem& p = problem_;
    // Meanwhile prefetches the rows of the next block, a tile with each tile.
    const float *next = p.x + (begin + count) * p.dim, *end = p.x + p.rows * p.dim;
    HWY_ALIGN float limit[kTileColumns];
    int32_t* to = ids;
    for (int64_t i = 0; i < count; i += kTileColumns) {
      const int64_t rows = std::min(kTileColumns, count - i);
      const float* next_end = std::min(end, next + kTileColumns * p.dim);
      for (; next < next_end; next += kLineFloats) prefetch_to_second_level(next);
      set_limits(p, begin + i, rows, limit);
      place_tile(assign_, centres_, begin + i, rows, rows_.get());
      const float* strip = centres_.packed.get();
      for (int64_t c = 0; c < p.count; c += in_strip_, strip += centres_.strip_floats) {
        const auto list_strip = kernel_of(std::min(in_strip_, p.count - c),
                                          std::make_integer_sequence<int, kTileRows>());
        to = list_strip(p.dim + 2, strip, rows_.get(), limit, rows,
                        static_cast<int32_t>(c * kMostBlockRows + i), to);
      }
    }
    return to - ids;
  }

 private:
  using ListStrip = int32_t* (*)(int64_t, const float*, const float*, const float*, int64_t,
                                 int32_t, int32_t*);

  /// Lists the close rows of a tile for the kPoints points of a strip. `first` is the id of the
  /// first row and the first point. Returns the end of the list.
  template <int kPoints>
  static HWY_NOINLINE int32_t* list_strip(int64_t terms, const float* strip, const float* rows,
                                          const float* limit, int64_t count, int32_t first,
                                          int32_t* to) {
    HWY_ALIGN float scores[kPoints * kTileColumns];
    store_full<kPoints, TileInit::kZero>(
        multiply<kPoints, 1>(terms, strip, kTileRows, rows, kTileColumns), scores, kTileColumns,
        nullptr);
    const FloatTag d;
    const hn::RebindToSigned<FloatTag> di;
    for (int j = 0; j < kTileVectors; ++j) {
      const FloatVector bound = load(limit + j * kLanes);
      const auto there =
          hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(0, count - j * kLanes)));
      auto id = count_from(first + static_cast<int32_t>(j * kLanes));
      for (int c = 0; c < kPoints; ++c) {
        // A score that is at least the limit proves that the point is no closer. Numbers that
        // overflow prove nothing.
        const FloatVector score = load(scores + c * kTileColumns + j * kLanes);
        const auto far = hn::And(hn::Ge(score, bound), hn::Lt(hn::Max(score, bound), splat(kFar)));
        const auto close = hn::RebindMask(di, hn::AndNot(far, there));
        store_compressed(id, close, to);
        to += hn::CountTrue(di, close);
        id = hn::Add(id, hn::Set(di, static_cast<int32_t>(kMostBlockRows)));
      }
    }
    return to;
  }
  template <int... kPoints>
  static ListStrip kernel_of(int64_t points, std::integer_sequence<int, kPoints...>) {
    static constexpr ListStrip kAll[] = {list_strip<kPoints + 1>...};
    return kAll[points - 1];
  }

  static int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

  const ClosestProblem& problem_;
  const AssignProblem assign_;
  const int64_t in_strip_;  ///< all strips have about as many points
  const Centres centres_;
  hwy::AlignedFreeUniquePtr<float[]> rows_;
};

/// Adds the rows of a table (rows, width) float64, times their weights, to sums (width).
template <int kVectors, class Weights>
HWY_INLINE void add_table(const double* table, int64_t width, int64_t rows, double* sums,
                          const Weights& weights) {
  const DoubleTag d;
  DoubleVector s[kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) s[v] = hn::LoadU(d, sums + v * kDoubles);
  for (int64_t i = 0; i < rows; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v)
      s[v] = hn::MulAdd(hn::LoadU(d, table + i * width + v * kDoubles), weights(i), s[v]);
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) hn::StoreU(s[v], d, sums + v * kDoubles);
}

void IncludePoints(const ClosestProblem& p) {
  constexpr int64_t kBlockFloats = 4096;
  const int64_t block = block_rows(p.dim, kBlockFloats);
  const int64_t candidates = p.count - p.included;
  const int64_t width = (std::max<int64_t>(1, candidates) + kDoubles - 1) / kDoubles * kDoubles;
  Screen screen(p);
  const auto most = static_cast<size_t>(kMostBlockRows * p.count);
  std::vector<int32_t> ids(most + kLanes);
  std::vector<double> squares(most);
  // min(closest, |x - candidate|^2) of the block's rows, [row][width].
  const auto table = hwy::AllocateAligned<double>(static_cast<size_t>(block * width));
  for_blocks(p, block, [&](int64_t begin, int64_t count, double* sums) HWY_ATTR {
    double* closest = p.closest + begin;
    const int64_t num_close = screen.list_close(begin, count, ids.data());
    for (int64_t k = 0; k < num_close; ++k) {
      const int64_t row = Screen::row_of(ids[k]), point = Screen::point_of(ids[k]);
      squares[k] = squared_distance(p.x + (begin + row) * p.dim, p.points + point * p.dim, p.dim);
      if (point < p.included) closest[row] = std::min(closest[row], squares[k]);
    }
    for (int64_t i = 0; i < count; ++i)
      for (int64_t v = 0; v < width; v += kDoubles)
        hn::StoreU(hn::Set(DoubleTag(), closest[i]), DoubleTag(), table.get() + i * width + v);
    for (int64_t k = 0; k < num_close; ++k) {
      const int64_t candidate = Screen::point_of(ids[k]) - p.included;
      if (candidate < 0) continue;
      double& to = table[Screen::row_of(ids[k]) * width + candidate];
      to = std::min(to, squares[k]);
    }
    with_weights(p.weight, begin, [&](const auto& weights) HWY_ATTR {
      for (int64_t v = 0; v < width; v += kSumVectors * kDoubles)
        with_vectors(
            std::min<int64_t>(kSumVectors, (width - v) / kDoubles),
            [&](auto vectors) HWY_ATTR {
              add_table<vectors()>(table.get() + v, width, count, sums + v, weights);
            },
            std::make_integer_sequence<int, kSumVectors>());
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::fit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::fit {

HWY_EXPORT(AssignRows);
HWY_EXPORT(NormsFrom);
HWY_EXPORT(SquaredDistances);
HWY_EXPORT(SmallestSquare);
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

double smallest_square(const float* x, const double* points, int64_t count, int64_t dim) {
  return HWY_DYNAMIC_DISPATCH(SmallestSquare)(x, points, count, dim);
}

void include_points(const ClosestProblem& problem) { HWY_DYNAMIC_DISPATCH(IncludePoints)(problem); }

}  // namespace dovetail::fit
#endif
