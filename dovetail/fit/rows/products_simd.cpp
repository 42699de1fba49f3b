#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/fit/rows/products_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>

#include "dovetail/fit/rows/float64_inl.h"
#include "dovetail/fit/rows/products_simd.h"
#include "hwy/aligned_allocator.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::fit {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kPanel = 2 * kDoubles;

/// Computes kRows rows of c from (i, j) on, `columns` (1 to kPanel) wide. With six rows, twelve
/// sums hide the latency of an FMA. If kFull, `columns` is kPanel, and no load needs a mask.
template <int kRows, bool kFull>
HWY_INLINE void add_tile(const ProductProblem& p, int64_t i, int64_t j, int64_t columns) {
  const DoubleTag d;
  const auto left = static_cast<size_t>(std::min(columns, kDoubles)),
             right = static_cast<size_t>(columns) - left;
  const auto first = hn::FirstN(d, left), second = hn::FirstN(d, right);
  const auto load = [&](const double* from, int half) HWY_ATTR {
    if constexpr (kFull) return hn::LoadU(d, from + half * kDoubles);
    return hn::MaskedLoad(half == 0 ? first : second, d, from + half * kDoubles);
  };
  DoubleVector sum[kRows][2];
  double* c = p.c + i * p.c_row + j;
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = load(c + r * p.c_row, 0);
    sum[r][1] = load(c + r * p.c_row, 1);
  }
  const double *a = p.a + i * p.a_row, *b = p.b + j;
  for (int64_t q = 0; q < p.k; ++q, a += p.a_column, b += p.b_row) {
    const auto b0 = load(b, 0), b1 = load(b, 1);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const auto element = hn::Set(d, a[r * p.a_row]);
      sum[r][0] = hn::MulAdd(element, b0, sum[r][0]);
      sum[r][1] = hn::MulAdd(element, b1, sum[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    hn::BlendedStore(sum[r][0], first, d, c + r * p.c_row);
    hn::BlendedStore(sum[r][1], second, d, c + r * p.c_row + kDoubles);
  }
}

template <int kRows>
HWY_INLINE void add_tall(const ProductProblem& p, int64_t i, int64_t j, int64_t columns) {
  columns == kPanel ? add_tile<kRows, true>(p, i, j, columns)
                    : add_tile<kRows, false>(p, i, j, columns);
}

void AddProduct(const ProductProblem& p) {
  constexpr int64_t kTallest = 6;
  for (int64_t j = 0; j < p.n; j += kPanel) {
    const int64_t columns = std::min(kPanel, p.n - j);
    for (int64_t i = 0; i < p.m; i += kTallest) {
      switch (std::min(kTallest, p.m - i)) {
        case 1:
          add_tall<1>(p, i, j, columns);
          break;
        case 2:
          add_tall<2>(p, i, j, columns);
          break;
        case 3:
          add_tall<3>(p, i, j, columns);
          break;
        case 4:
          add_tall<4>(p, i, j, columns);
          break;
        case 5:
          add_tall<5>(p, i, j, columns);
          break;
        default:
          add_tall<6>(p, i, j, columns);
      }
    }
  }
}

/// Returns x - point for a vector of columns, or for its first `count` columns and zeros.
template <class T>
HWY_INLINE DoubleVector minus(const T* x, const double* point) {
  return hn::Sub(widen(x), widen(point));
}
template <class T>
HWY_INLINE DoubleVector minus(const T* x, const double* point, size_t count) {
  return hn::Sub(widen(x, count), widen(point, count));
}

template <class T>
void SubtractPoint(const T* x, const double* point, int64_t rows, int64_t dim, double* y,
                   int64_t y_row) {
  const DoubleTag d;
  for (int64_t i = 0; i < rows; ++i, x += dim, y += y_row) {
    int64_t j = 0;
    for (; j + kDoubles <= dim; j += kDoubles) hn::StoreU(minus(x + j, point + j), d, y + j);
    for (; j < dim; ++j) y[j] = static_cast<double>(x[j]) - point[j];
  }
}

// A block of z is packed into panels of kSquareColumns columns, [panel][row][kSquareColumns]. Two
// panels of a block fit the first-level cache. A tile has columns of one panel as its rows, and
// vectors of another panel. Panels and products are of type P: float64, or float32 whose sums over
// a block are then added in float64.
constexpr int kSquareVectors = 3;
template <class P>
constexpr int64_t kLanesOf = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<P>()));
template <class P>
constexpr int64_t kSquareColumns = kSquareVectors * kLanesOf<P>;
constexpr int64_t kLine = 64 / sizeof(double);  ///< elements of a cache line
/// Rows of a tile of `vectors` vectors. Their product is the number of sums that hide the latency
/// of an FMA and fit the registers. Divides kSquareColumns.
constexpr int square_rows(int vectors) {
  return std::max(1, static_cast<int>(kDoubles) * kSquareVectors / vectors);
}

/// Stores x - point for a vector of columns, or for its first `count` columns and zeros.
template <class T>
HWY_INLINE void store_minus(const T* x, const double* point, double* to) {
  hn::Store(minus(x, point), DoubleTag(), to);
}
template <class T>
HWY_INLINE void store_minus(const T* x, const double* point, size_t count, double* to) {
  hn::Store(minus(x, point, count), DoubleTag(), to);
}
HWY_INLINE void store_minus(const float* x, const float* point, float* to) {
  const hn::ScalableTag<float> d;
  hn::Store(hn::Sub(hn::LoadU(d, x), hn::LoadU(d, point)), d, to);
}
HWY_INLINE void store_minus(const float* x, const float* point, size_t count, float* to) {
  const hn::ScalableTag<float> d;
  const auto there = hn::FirstN(d, count);
  hn::Store(hn::Sub(hn::MaskedLoad(there, d, x), hn::MaskedLoad(there, d, point)), d, to);
}

/// Packs z of `rows` rows. Rows are read as they lie in memory, which suits the prefetcher.
template <class T, class P>
HWY_INLINE void pack_block(const T* x, const P* point, int64_t rows, int64_t dim, P* panels) {
  constexpr int64_t kColumns = kSquareColumns<P>, kLanes = kLanesOf<P>;
  for (int64_t i = 0; i < rows; ++i, x += dim, panels += kColumns) {
    P* to = panels;
    int64_t j = 0;
    for (; j + kColumns <= dim; j += kColumns, to += rows * kColumns)
#pragma GCC unroll 3
      for (int64_t v = 0; v < kColumns; v += kLanes) store_minus(x + j + v, point + j + v, to + v);
    for (int64_t v = 0; j < dim && v < kColumns; v += kLanes) {
      const int64_t left = std::clamp<int64_t>(dim - j - v, 0, kLanes);
      store_minus(x + j + v, point + j + v, static_cast<size_t>(left), to + v);
    }
  }
}

/// Tile of sums: `tall` rows of `columns` elements.
struct SquareTile {
  double* sum;
  int64_t stride, tall, columns;
};

/// Stores a vector in the tile of sums, or adds it if kAdds.
template <bool kFull, bool kAdds>
HWY_INLINE void take_sums(DoubleVector value, const SquareTile& to, int row, int64_t column) {
  const DoubleTag d;
  double* at = to.sum + row * to.stride + column;
  if constexpr (kFull) {
    if constexpr (kAdds) value = hn::Add(value, hn::LoadU(d, at));
    hn::StoreU(value, d, at);
  } else if (row < to.tall) {
    const int64_t count = std::clamp<int64_t>(to.columns - column, 0, kDoubles);
    const auto there = hn::FirstN(d, static_cast<size_t>(count));
    if constexpr (kAdds) value = hn::Add(value, hn::MaskedLoad(there, d, at));
    hn::BlendedStore(value, there, d, at);
  }
}

/// Adds to the tile the products of columns of `left` with columns of `right`, over all rows of the
/// packed panels. The tile has vectors kFrom to kTo - 1 of each row. If kFull, it has all rows and
/// columns, and no access needs a mask.
template <class P, int kRows, int kFrom, int kTo, bool kFull>
HWY_NOINLINE void add_square(const P* left, const P* right, int64_t rows, const SquareTile& to) {
  const hn::ScalableTag<P> d;
  constexpr int64_t kLanes = kLanesOf<P>;
  constexpr bool kWidens = sizeof(P) < sizeof(double);
  hn::Vec<decltype(d)> tile[kRows][kTo];
  if constexpr (kWidens)  // the sums of many columns leave the second-level cache between blocks
    for (int64_t r = 0; r < std::min<int64_t>(kRows, to.tall); ++r)
      for (int64_t c = 0; c < to.columns; c += kLine) hwy::Prefetch(to.sum + r * to.stride + c);
#pragma GCC unroll 24
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int v = kFrom; v < kTo; ++v) {
      if constexpr (kWidens) {
        tile[r][v] = hn::Zero(d);
      } else {
        const double* from = to.sum + r * to.stride + v * kLanes;
        const int64_t count = std::clamp<int64_t>(to.columns - v * kLanes, 0, kLanes);
        if (kFull)
          tile[r][v] = hn::LoadU(d, from);
        else
          tile[r][v] = r < to.tall
                           ? hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, from)
                           : hn::Zero(d);
      }
    }
  for (int64_t i = 0; i < rows; ++i, left += kSquareColumns<P>, right += kSquareColumns<P>) {
    hn::Vec<decltype(d)> b[kTo];
#pragma GCC unroll 3
    for (int v = kFrom; v < kTo; ++v) b[v] = hn::Load(d, right + v * kLanes);
#pragma GCC unroll 24
    for (int r = 0; r < kRows; ++r) {
      const auto a = hn::Set(d, left[r]);
#pragma GCC unroll 3
      for (int v = kFrom; v < kTo; ++v) tile[r][v] = hn::MulAdd(a, b[v], tile[r][v]);
    }
  }
#pragma GCC unroll 24
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int v = kFrom; v < kTo; ++v) {
      const int64_t column = v * kLanes;
      if constexpr (kWidens) {
        HWY_ALIGN float sums[kLanes];
        hn::Store(tile[r][v], d, sums);
        for (int64_t c = 0; c < kLanes; c += kDoubles)
          take_sums<kFull, true>(widen(sums + c), to, r, column + c);
      } else {
        take_sums<kFull, false>(tile[r][v], to, r, column);
      }
    }
}

/// Adds the tiles of rows [0, tall) of panel `left` and the vectors kFrom to kTo - 1 of `right`.
template <class P, int kRows, int kFrom, int kTo>
HWY_INLINE void add_rows(const P* left, const P* right, int64_t rows, SquareTile to) {
  const bool wide = to.columns >= kTo * kLanesOf<P>;
  const int64_t all = to.tall;
  for (int64_t r = 0; r < all; r += kRows, left += kRows, to.sum += kRows * to.stride) {
    to.tall = all - r;
    wide&& to.tall >= kRows ? add_square<P, kRows, kFrom, kTo, true>(left, right, rows, to)
                            : add_square<P, kRows, kFrom, kTo, false>(left, right, rows, to);
  }
}

/// Adds a panel's products with itself, on and above the diagonal.
template <class P>
void add_own(const P* panel, int64_t rows, SquareTile to) {
  constexpr int kRows = square_rows(kSquareVectors);
  const int64_t all = to.tall;
  for (int64_t r = 0; r < all; r += kRows, panel += kRows, to.sum += kRows * to.stride) {
    to.tall = std::min<int64_t>(kRows, all - r);
    // Vectors that end before column r are below the diagonal.
    const P* right = panel - r;
    const int64_t from = r / kLanesOf<P>;
    from == 0   ? add_rows<P, kRows, 0, kSquareVectors>(panel, right, rows, to)
    : from == 1 ? add_rows<P, kRows, 1, kSquareVectors>(panel, right, rows, to)
                : add_rows<P, kRows, 2, kSquareVectors>(panel, right, rows, to);
  }
}

template <class P, class T>
void AddSquares(const T* x, const P* point, int64_t rows, int64_t dim, double* sum) {
  constexpr int64_t kColumns = kSquareColumns<P>;
  const int64_t panels = (dim + kColumns - 1) / kColumns;
  const auto packed =
      hwy::AllocateAligned<P>(static_cast<size_t>(panels * kColumns * kSquareBlock));
  for (int64_t begin = 0; begin < rows; begin += kSquareBlock) {
    const int64_t count = std::min(kSquareBlock, rows - begin);
    pack_block(x + begin * dim, point, count, dim, packed.get());
    for (int64_t j = 0; j < panels; ++j) {
      const P* right = packed.get() + j * count * kColumns;
      const int64_t column = j * kColumns, columns = std::min(kColumns, dim - column);
      for (int64_t i = 0; i < j; ++i) {
        const P* left = packed.get() + i * count * kColumns;
        const SquareTile to{.sum = sum + i * kColumns * dim + column,
                            .stride = dim,
                            .tall = kColumns,
                            .columns = columns};
        columns <= kLanesOf<P>       ? add_rows<P, square_rows(1), 0, 1>(left, right, count, to)
        : columns <= 2 * kLanesOf<P> ? add_rows<P, square_rows(2), 0, 2>(left, right, count, to)
                                     : add_rows<P, square_rows(3), 0, 3>(left, right, count, to);
      }
      add_own(
          right, count,
          {.sum = sum + column * dim + column, .stride = dim, .tall = columns, .columns = columns});
    }
  }
}

template <class T>
void AddMoments(const T* x, const double* point, int64_t rows, int64_t dim, double* first,
                double* second) {
  const DoubleTag d;
  for (int64_t i = 0; i < rows; ++i, x += dim) {
    int64_t j = 0;
    for (; j + kDoubles <= dim; j += kDoubles) {
      const auto y = minus(x + j, point + j);
      hn::StoreU(hn::Add(hn::LoadU(d, first + j), y), d, first + j);
      hn::StoreU(hn::MulAdd(y, y, hn::LoadU(d, second + j)), d, second + j);
    }
    if (j == dim) continue;
    const auto left = static_cast<size_t>(dim - j);
    const auto there = hn::FirstN(d, left);
    const auto y = minus(x + j, point + j, left);
    hn::BlendedStore(hn::Add(hn::MaskedLoad(there, d, first + j), y), there, d, first + j);
    hn::BlendedStore(hn::MulAdd(y, y, hn::MaskedLoad(there, d, second + j)), there, d, second + j);
  }
}

void SubtractPointFromFloat(const float* x, const double* point, int64_t rows, int64_t dim,
                            double* y, int64_t y_row) {
  SubtractPoint(x, point, rows, dim, y, y_row);
}
void SubtractPointFromDouble(const double* x, const double* point, int64_t rows, int64_t dim,
                             double* y, int64_t y_row) {
  SubtractPoint(x, point, rows, dim, y, y_row);
}
void AddSquaresOfFloat(const float* x, const double* point, int64_t rows, int64_t dim,
                       double* sum) {
  AddSquares<double>(x, point, rows, dim, sum);
}
void AddSquaresOfDouble(const double* x, const double* point, int64_t rows, int64_t dim,
                        double* sum) {
  AddSquares<double>(x, point, rows, dim, sum);
}
void AddFloatSquares(const float* x, const float* point, int64_t rows, int64_t dim, double* sum) {
  AddSquares<float>(x, point, rows, dim, sum);
}
void AddMomentsOfFloat(const float* x, const double* point, int64_t rows, int64_t dim,
                       double* first, double* second) {
  AddMoments(x, point, rows, dim, first, second);
}
void AddMomentsOfDouble(const double* x, const double* point, int64_t rows, int64_t dim,
                        double* first, double* second) {
  AddMoments(x, point, rows, dim, first, second);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::fit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::fit {

HWY_EXPORT(AddProduct);
HWY_EXPORT(SubtractPointFromFloat);
HWY_EXPORT(SubtractPointFromDouble);
HWY_EXPORT(AddSquaresOfFloat);
HWY_EXPORT(AddSquaresOfDouble);
HWY_EXPORT(AddFloatSquares);
HWY_EXPORT(AddMomentsOfFloat);
HWY_EXPORT(AddMomentsOfDouble);

void add_product(const ProductProblem& problem) { HWY_DYNAMIC_DISPATCH(AddProduct)(problem); }

void subtract_point(const float* x, const double* point, int64_t rows, int64_t dim, double* y,
                    int64_t y_row) {
  HWY_DYNAMIC_DISPATCH(SubtractPointFromFloat)(x, point, rows, dim, y, y_row);
}
void subtract_point(const double* x, const double* point, int64_t rows, int64_t dim, double* y,
                    int64_t y_row) {
  HWY_DYNAMIC_DISPATCH(SubtractPointFromDouble)(x, point, rows, dim, y, y_row);
}

void add_squares(const float* x, const double* point, int64_t rows, int64_t dim, double* sum) {
  HWY_DYNAMIC_DISPATCH(AddSquaresOfFloat)(x, point, rows, dim, sum);
}
void add_squares(const double* x, const double* point, int64_t rows, int64_t dim, double* sum) {
  HWY_DYNAMIC_DISPATCH(AddSquaresOfDouble)(x, point, rows, dim, sum);
}

void add_float_squares(const float* x, const float* point, int64_t rows, int64_t dim, double* sum) {
  HWY_DYNAMIC_DISPATCH(AddFloatSquares)(x, point, rows, dim, sum);
}

void add_moments(const float* x, const double* point, int64_t rows, int64_t dim, double* first,
                 double* second) {
  HWY_DYNAMIC_DISPATCH(AddMomentsOfFloat)(x, point, rows, dim, first, second);
}
void add_moments(const double* x, const double* point, int64_t rows, int64_t dim, double* first,
                 double* second) {
  HWY_DYNAMIC_DISPATCH(AddMomentsOfDouble)(x, point, rows, dim, first, second);
}

}  // namespace dovetail::fit
#endif
