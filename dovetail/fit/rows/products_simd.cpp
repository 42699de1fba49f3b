#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/fit/rows/products_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>

#include "dovetail/fit/rows/float64_inl.h"
#include "dovetail/fit/rows/products_simd.h"
#include "hwy/aligned_allocator.h"
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
HWY_INLINE void add_rows(const ProductProblem& p, int64_t i, int64_t j, int64_t columns) {
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
          add_rows<1>(p, i, j, columns);
          break;
        case 2:
          add_rows<2>(p, i, j, columns);
          break;
        case 3:
          add_rows<3>(p, i, j, columns);
          break;
        case 4:
          add_rows<4>(p, i, j, columns);
          break;
        case 5:
          add_rows<5>(p, i, j, columns);
          break;
        default:
          add_rows<6>(p, i, j, columns);
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
// panels of a block fit the first-level cache. A tile has kSquareRows columns of one panel as its
// rows, and all columns of another.
constexpr int kSquareVectors = 3;
constexpr int64_t kSquareColumns = kSquareVectors * kDoubles, kSquareBlock = 128;
constexpr int kSquareRows = static_cast<int>(kDoubles);  // divides kSquareColumns

/// Packs z of `rows` rows. Rows are read as they lie in memory, which suits the prefetcher.
template <class T>
HWY_INLINE void pack_block(const T* x, const double* point, int64_t rows, int64_t dim,
                           double* panels) {
  const DoubleTag d;
  for (int64_t i = 0; i < rows; ++i, x += dim, panels += kSquareColumns) {
    double* to = panels;
    int64_t j = 0;
    for (; j + kSquareColumns <= dim; j += kSquareColumns, to += rows * kSquareColumns)
#pragma GCC unroll 3
      for (int v = 0; v < kSquareVectors; ++v)
        hn::Store(minus(x + j + v * kDoubles, point + j + v * kDoubles), d, to + v * kDoubles);
    for (int v = 0; j < dim && v < kSquareVectors; ++v) {
      const auto left =
          static_cast<size_t>(std::clamp<int64_t>(dim - j - v * kDoubles, 0, kDoubles));
      hn::Store(minus(x + j + v * kDoubles, point + j + v * kDoubles, left), d, to + v * kDoubles);
    }
  }
}

/// Tile of sums: `tall` rows, at most kSquareRows, of `columns` elements, at most kSquareColumns.
struct SquareTile {
  double* sum;
  int64_t stride, tall, columns;
};

/// Adds to the tile the products of columns of `left` with all columns of `right`, over all rows of
/// the packed panels. Leaves out the first kFrom vectors of each row of the tile. If kFull, the
/// tile has all rows and columns, and no access needs a mask.
template <int kFrom, bool kFull>
HWY_NOINLINE void add_square(const double* left, const double* right, int64_t rows,
                             const SquareTile& to) {
  const DoubleTag d;
  const auto there = [&](int v) HWY_ATTR {
    const int64_t count = std::clamp<int64_t>(to.columns - v * kDoubles, 0, kDoubles);
    return hn::FirstN(d, static_cast<size_t>(count));
  };
  DoubleVector tile[kSquareRows][kSquareVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kSquareRows; ++r)
#pragma GCC unroll 3
    for (int v = kFrom; v < kSquareVectors; ++v) {
      const double* from = to.sum + r * to.stride + v * kDoubles;
      if (kFull)
        tile[r][v] = hn::LoadU(d, from);
      else
        tile[r][v] = r < to.tall ? hn::MaskedLoad(there(v), d, from) : hn::Zero(d);
    }
  for (int64_t i = 0; i < rows; ++i, left += kSquareColumns, right += kSquareColumns) {
    DoubleVector b[kSquareVectors];
#pragma GCC unroll 3
    for (int v = kFrom; v < kSquareVectors; ++v) b[v] = hn::Load(d, right + v * kDoubles);
#pragma GCC unroll 8
    for (int r = 0; r < kSquareRows; ++r) {
      const auto a = hn::Set(d, left[r]);
#pragma GCC unroll 3
      for (int v = kFrom; v < kSquareVectors; ++v) tile[r][v] = hn::MulAdd(a, b[v], tile[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kSquareRows; ++r)
#pragma GCC unroll 3
    for (int v = kFrom; v < kSquareVectors; ++v) {
      double* at = to.sum + r * to.stride + v * kDoubles;
      if constexpr (kFull)
        hn::StoreU(tile[r][v], d, at);
      else if (r < to.tall)
        hn::BlendedStore(tile[r][v], there(v), d, at);
    }
}

using AddSquare = void (*)(const double*, const double*, int64_t, const SquareTile&);
template <int kFrom>
AddSquare square_of(const SquareTile& to) {
  const bool full = to.tall == kSquareRows && to.columns == kSquareColumns;
  return full ? add_square<kFrom, true> : add_square<kFrom, false>;
}

template <class T>
void AddSquares(const T* x, const double* point, int64_t rows, int64_t dim, double* sum) {
  const int64_t panels = (dim + kSquareColumns - 1) / kSquareColumns;
  const auto packed =
      hwy::AllocateAligned<double>(static_cast<size_t>(panels * kSquareColumns * kSquareBlock));
  for (int64_t begin = 0; begin < rows; begin += kSquareBlock) {
    const int64_t count = std::min(kSquareBlock, rows - begin);
    pack_block(x + begin * dim, point, count, dim, packed.get());
    const auto add = [&](int64_t i, int64_t r, int64_t j) {
      const int64_t row = i * kSquareColumns + r, column = j * kSquareColumns;
      const SquareTile to{.sum = sum + row * dim + column,
                          .stride = dim,
                          .tall = std::min<int64_t>(kSquareRows, dim - row),
                          .columns = std::min(kSquareColumns, dim - column)};
      // Vectors that end before column `row` are below the diagonal.
      const int64_t from = i == j ? r / kDoubles : 0;
      const AddSquare square = from == 0   ? square_of<0>(to)
                               : from == 1 ? square_of<1>(to)
                                           : square_of<2>(to);
      square(packed.get() + i * count * kSquareColumns + r,
             packed.get() + j * count * kSquareColumns, count, to);
    };
    for (int64_t j = 0; j < panels; ++j)
      for (int64_t i = 0; i <= j; ++i)
        for (int64_t r = 0; r < kSquareColumns && i * kSquareColumns + r < dim; r += kSquareRows)
          add(i, r, j);
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
  AddSquares(x, point, rows, dim, sum);
}
void AddSquaresOfDouble(const double* x, const double* point, int64_t rows, int64_t dim,
                        double* sum) {
  AddSquares(x, point, rows, dim, sum);
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
