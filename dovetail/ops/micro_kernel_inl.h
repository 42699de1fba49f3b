// Register tile of all our FP32 matrix products, and the packing of their operands.
// Compiled once per instruction set: included by *_simd.cpp after simd_config.h, through Highway's
// foreach_target.
#if defined(DOVETAIL_OPS_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_OPS_MICRO_KERNEL_INL_H_
#undef DOVETAIL_OPS_MICRO_KERNEL_INL_H_
#else
#define DOVETAIL_OPS_MICRO_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "dovetail/ops/simd_math_inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

// A tile is a block of kTileRows x kTileColumns accumulators, and fills the registers. AVX-512 has
// 32: 24 accumulators, 2 of b, 1 of a. AVX2 has 16: 12 accumulators, 2 of b, 1 of a.
constexpr int kTileVectors = 2;
constexpr int64_t kTileColumns = kTileVectors * kLanes;
#if HWY_TARGET == HWY_AVX3
constexpr int kTileRows = 12;
#elif HWY_TARGET == HWY_AVX2
constexpr int kTileRows = 6;
#else
constexpr int kTileRows = 4;
#endif

/// Number of terms (indices along k) by which prefetching is ahead of the multiplication.
constexpr int64_t kPrefetchSteps = 6;

/// Part of a product that is held in registers: kRows x kTileColumns sums.
template <int kRows>
struct Tile {
  FloatVector v[kRows][kTileVectors];
};

// Number of terms in which `multiply` prefetches two cache lines of `upcoming`.
constexpr int64_t kUpcomingSteps = 8;
constexpr int64_t kLineFloats = 64 / sizeof(float);

HWY_INLINE void prefetch_to_second_level(const void* at) { __builtin_prefetch(at, 0, 2); }

/// Adds one term to each sum of a tile: tile[r][j] += a[r * kRowStride] * b[j].
template <int kRows, int kRowStride>
HWY_INLINE void multiply_step(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                              int64_t b_step, Tile<kRows>& tile) {
  const FloatTag d;
  // b streams from the second-level cache: prefetches it some steps ahead. A prefetch beyond the
  // end of b is only a hint.
  hwy::Prefetch(b + kPrefetchSteps * b_step);
  if constexpr (kTileColumns * sizeof(float) > 64)
    hwy::Prefetch(b + kPrefetchSteps * b_step + kTileColumns / 2);
  const FloatVector b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + kLanes);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const FloatVector ar = hn::Set(d, a[r * kRowStride]);
    tile.v[r][0] = hn::MulAdd(ar, b0, tile.v[r][0]);
    tile.v[r][1] = hn::MulAdd(ar, b1, tile.v[r][1]);
  }
}

/// Returns tile[r][j] = sum over p < k of a[r * kRowStride + p * a_step] * b[p * b_step + j], added
/// in the order of p. If `upcoming` is not null, also prefetches the memory from there on.
template <int kRows, int kRowStride>
HWY_INLINE Tile<kRows> multiply(int64_t k, const float* HWY_RESTRICT a, int64_t a_step,
                                const float* HWY_RESTRICT b, int64_t b_step,
                                const float* upcoming = nullptr) {
  const FloatTag d;
  Tile<kRows> tile;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    tile.v[r][0] = hn::Zero(d);
    tile.v[r][1] = hn::Zero(d);
  }
  for (; upcoming && k >= kUpcomingSteps; k -= kUpcomingSteps) {
#pragma GCC unroll 1
    for (int half = 0; half < 2; ++half, upcoming += kLineFloats) {
      prefetch_to_second_level(upcoming);
      for (int64_t p = 0; p < kUpcomingSteps / 2; ++p, a += a_step, b += b_step)
        multiply_step<kRows, kRowStride>(a, b, b_step, tile);
    }
  }
  for (; k > 0; --k, a += a_step, b += b_step) multiply_step<kRows, kRowStride>(a, b, b_step, tile);
  return tile;
}

#if HWY_TARGET == HWY_AVX3
/// Multiplies the packed operands a (k, kTileRows) and b (k, kTileColumns), with sums in float32.
/// Each element is a pair of bfloat16. In each term, the product of the second numbers is
/// added before the product of the first. Also prefetches the memory from `upcoming` on.
inline HWY_NOINLINE __attribute__((target("avx512bf16"))) Tile<kTileRows> multiply_pairs(
    int64_t k, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
    const float* HWY_RESTRICT upcoming) {
  __m512 sums[kTileRows][kTileVectors];
#pragma GCC unroll 16
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_ps();
  for (int64_t p = 0; p < k; ++p, a += kTileRows, b += kTileColumns) {
    _mm_prefetch(reinterpret_cast<const char*>(b + kPrefetchSteps * kTileColumns), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(b + kPrefetchSteps * kTileColumns + kLanes),
                 _MM_HINT_T0);
    if (p % 4 == 0)
      _mm_prefetch(reinterpret_cast<const char*>(upcoming + p * (kLineFloats / 4)), _MM_HINT_T1);
    const auto b0 = reinterpret_cast<__m512bh>(_mm512_loadu_ps(b)),
               b1 = reinterpret_cast<__m512bh>(_mm512_loadu_ps(b + kLanes));
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const auto ar = reinterpret_cast<__m512bh>(_mm512_set1_ps(a[r]));
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], ar, b0);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], ar, b1);
    }
  }
  Tile<kTileRows> tile;
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    tile.v[r][0] = FloatVector{sums[r][0]};
    tile.v[r][1] = FloatVector{sums[r][1]};
  }
  return tile;
}
#endif

/// Prefetches the cache lines of c that `store_tile` will read or write, so that they arrive before
/// the product is done.
template <int kRows>
HWY_INLINE void prefetch_tile(const float* c, int64_t ldc) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    hwy::Prefetch(c + r * ldc);
    hwy::Prefetch(c + r * ldc + kTileColumns - 1);
  }
}

/// Number that is added to a sum of a tile when the tile is stored. It is zero, the old element of
/// c, or the bias of the column.
enum class TileInit { kZero, kAccumulate, kBias };

/// Stores all rows and columns of a tile to c, as kInit says.
template <int kRows, TileInit kInit>
HWY_INLINE void store_full(const Tile<kRows>& tile, float* HWY_RESTRICT c, int64_t ldc,
                           const float* HWY_RESTRICT bias) {
  const FloatTag d;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < kTileVectors; ++j) {
      float* to = c + r * ldc + j * kLanes;
      FloatVector value = tile.v[r][j];
      if constexpr (kInit == TileInit::kAccumulate) value = hn::Add(hn::LoadU(d, to), value);
      if constexpr (kInit == TileInit::kBias)
        value = hn::Add(hn::LoadU(d, bias + j * kLanes), value);
      hn::StoreU(value, d, to);
    }
  }
}

/// Stores the first `rows` rows and `columns` columns of a tile to c, as `init` says. The tile has
/// been written to memory, with kTileColumns sums a row.
inline HWY_NOINLINE void store_corner(const float* tile, float* c, int64_t ldc, int64_t rows,
                                      int64_t columns, TileInit init, const float* bias) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      const float value = tile[r * kTileColumns + j];
      float& to = c[r * ldc + j];
      to = init == TileInit::kAccumulate ? to + value
           : init == TileInit::kBias     ? bias[j] + value
                                         : value;
    }
  }
}

/// Stores the first `rows` rows and `columns` columns of a tile to c, as `init` says. The remaining
/// sums of the tile belong to rows and columns that c lacks.
template <int kRows>
HWY_INLINE void store_tile(const Tile<kRows>& tile, float* c, int64_t ldc, int64_t rows,
                           int64_t columns, TileInit init, const float* bias = nullptr) {
  if (rows < kRows || columns < kTileColumns) {
    HWY_ALIGN float values[kRows * kTileColumns];
    store_full<kRows, TileInit::kZero>(tile, values, kTileColumns, nullptr);
    return store_corner(values, c, ldc, rows, columns, init, bias);
  }
  switch (init) {
    case TileInit::kZero:
      return store_full<kRows, TileInit::kZero>(tile, c, ldc, bias);
    case TileInit::kAccumulate:
      return store_full<kRows, TileInit::kAccumulate>(tile, c, ldc, bias);
    case TileInit::kBias:
      return store_full<kRows, TileInit::kBias>(tile, c, ldc, bias);
  }
}

/// Adds kRows x kTileColumns sums to a tile.
template <int kRows>
HWY_INLINE void add_to_tile(const float* sums, Tile<kRows>& tile) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < kTileVectors; ++j)
      tile.v[r][j] = hn::Add(load(sums + r * kTileColumns + j * kLanes), tile.v[r][j]);
  }
}

/// Adds `bias` (unless null) to the first `rows` rows and `columns` columns of a tile, and stores
/// them to c as bfloat16.
template <int kRows>
HWY_INLINE void store_tile(const Tile<kRows>& tile, BFloat16* c, int64_t ldc, int64_t rows,
                           int64_t columns, const float* bias) {
  HWY_ALIGN float padded[kTileColumns] = {};
  if (bias) std::copy_n(bias, columns, padded);
  HWY_ALIGN float values[kRows * kTileColumns];
  store_full<kRows, TileInit::kBias>(tile, values, kTileColumns, padded);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; j += kLanes)
      store(load(values + r * kTileColumns + j), c + r * ldc + j, columns - j);
  }
}

/// Prefetches the cache lines of rows row[0] .. row[rows - 1] of c, as `prefetch_tile` does.
HWY_INLINE void prefetch_rows(const float* c, int64_t ldc, int64_t rows, const int32_t* row) {
  for (int64_t r = 0; r < rows; ++r) prefetch_tile<1>(c + row[r] * ldc, ldc);
}

/// Adds the first `rows` rows and `columns` columns of a tile to rows of c: c[row[r]] += weight[r]
/// * (row r of the tile [+ bias]). If `weight` is null, weights are 1.
template <int kRows>
HWY_INLINE void add_tile_to_rows(const Tile<kRows>& tile, float* c, int64_t ldc, int64_t rows,
                                 int64_t columns, const int32_t* row, const float* weight,
                                 const float* bias) {
  HWY_ALIGN float values[kRows * kTileColumns];
  if (bias) {
    HWY_ALIGN float padded[kTileColumns] = {};
    std::copy_n(bias, columns, padded);
    store_full<kRows, TileInit::kBias>(tile, values, kTileColumns, padded);
  } else {
    store_full<kRows, TileInit::kZero>(tile, values, kTileColumns, nullptr);
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* to = c + row[r] * ldc;
    const float* value = values + r * kTileColumns;
    const FloatVector w = splat(weight ? weight[r] : 1.0f);
    for (int64_t j = 0; j < columns; j += kLanes)
      store(hn::MulAdd(w, load(value + j), load(to + j, columns - j)), to + j, columns - j);
  }
}

/// Rows of a matrix in memory, `stride` elements apart. If `index` is null, these are all rows in
/// order; otherwise row i is the row with number index[i].
template <class T>
struct LinesOf {
  const T* first;
  int64_t stride;
  const int32_t* index = nullptr;
  const T* operator[](int64_t i) const { return first + (index ? index[i] : i) * stride; }
  LinesOf from(int64_t i) const {
    return index ? LinesOf{first, stride, index + i} : LinesOf{first + i * stride, stride};
  }
};
using Lines = LinesOf<float>;

/// Number of elements of type T in a cache line.
template <class T>
constexpr int64_t kLineElements = 64 / static_cast<int64_t>(sizeof(T));

HWY_INLINE float in_float32(float x) { return x; }
HWY_INLINE float in_float32(BFloat16 x) {
  const uint32_t bits = uint32_t{x} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

#if HWY_TARGET != HWY_SCALAR
/// Returns four elements in float32.
HWY_INLINE auto load_four(const float* from) { return hn::LoadU(hn::FixedTag<float, 4>(), from); }
HWY_INLINE auto load_four(const BFloat16* from) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<uint32_t, 4> bits;
  const hn::FixedTag<BFloat16, 4> narrow;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(narrow, from))));
}
#endif

/// Writes kCount elements from `from` on to `to`, in float32.
template <int64_t kCount>
HWY_INLINE void copy_line(const float* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  std::memcpy(to, from, kCount * sizeof(float));
}
template <int64_t kCount>
HWY_INLINE void copy_line(const BFloat16* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  int64_t i = 0;
  for (; i + kLanes <= kCount; i += kLanes) store(load(from + i), to + i);
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 <= kCount; i += 4) hn::StoreU(load_four(from + i), hn::FixedTag<float, 4>(), to + i);
#endif
  for (; i < kCount; ++i) to[i] = in_float32(from[i]);
}

#if HWY_TARGET != HWY_SCALAR
/// Writes to[p * to_stride + i] = element p of v_i, for four vectors of four elements.
template <class V>
HWY_INLINE void store_transposed(V v0, V v1, V v2, V v3, float* HWY_RESTRICT to,
                                 int64_t to_stride) {
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> dw;
  const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v0, v1));
  const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v2, v3));
  const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v0, v1));
  const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v2, v3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23)), d, to + to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, high01, high23)), d, to + 2 * to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23)), d, to + 3 * to_stride);
}
#endif

/// Writes to[p * to_stride + i] = from[i][p] for i < count and p < k. Rows are read four at a time.
/// Meanwhile, the next four rows are prefetched, if they are below row `upcoming`. If all rows
/// are in the first-level cache, pass `upcoming` = 0: no row is prefetched.
template <class T>
HWY_INLINE void transpose(const LinesOf<T>& from, int64_t count, int64_t k, float* HWY_RESTRICT to,
                          int64_t to_stride, int64_t upcoming = 0) {
  int64_t in_fours = 0;
#if HWY_TARGET != HWY_SCALAR
  // Computed before the loop: for a constant count, the compiler then knows how many rows remain.
  in_fours = count / 4 * 4;
  for (int64_t i = 0; i < in_fours; i += 4) {
    const T *r0 = from[i], *r1 = from[i + 1], *r2 = from[i + 2], *r3 = from[i + 3];
    float* out = to + i;
    const T* next[4] = {};
    for (int64_t r = 0; r < 4 && i + 4 + r < upcoming; ++r) next[r] = from[i + 4 + r];
    int64_t p = 0;
    for (const int64_t whole = k / 4 * 4; p < whole; p += 4, out += 4 * to_stride) {
      if (const T* row = next[p / 4 % 4])
        hwy::Prefetch(row + p / kLineElements<T> * kLineElements<T>);
      store_transposed(load_four(r0 + p), load_four(r1 + p), load_four(r2 + p), load_four(r3 + p),
                       out, to_stride);
    }
    for (; p < k; ++p, out += to_stride) {
      out[0] = in_float32(r0[p]);
      out[1] = in_float32(r1[p]);
      out[2] = in_float32(r2[p]);
      out[3] = in_float32(r3[p]);
    }
  }
#endif
  for (int64_t i = in_fours; i < count; ++i) {
    const T* line = from[i];
    for (int64_t p = 0; p < k; ++p) to[p * to_stride + i] = in_float32(line[p]);
  }
}

// Layout of a packed operand: [tile][term][row or column of the tile]. A tile is kWidth rows of a,
// or kWidth columns of b. A term is an index p along k. If the matrix does not fill the final tile,
// the rest of this tile is zero.

/// Packs the matrix from[i][p] for i < count and p < k. A row of `from` is a row of a, or a column
/// of b.
template <int64_t kWidth, class T>
HWY_INLINE void pack_transposed(const LinesOf<T>& from, int64_t count, int64_t k,
                                float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < count; i += kWidth, to += kWidth * k) {
    const int64_t filled = std::min(count - i, kWidth);
    transpose(from.from(i), filled, k, to, kWidth, count - i);
    for (int64_t p = 0; filled < kWidth && p < k; ++p)
      std::fill_n(to + p * kWidth + filled, kWidth - filled, 0.0f);
  }
}

/// Packs the matrix from[p][i] for i < count and p < k. A row of `from` has all elements of one
/// term. The outer loop is over terms, in the order of memory, so each line and each page is
/// touched once.
template <int64_t kWidth, class T>
HWY_INLINE void pack_straight(const LinesOf<T>& from, int64_t count, int64_t k,
                              float* HWY_RESTRICT to) {
  constexpr int64_t kAhead = 6;  // number of lines
  for (int64_t p = 0; p < k; ++p, to += kWidth) {
    const T* line = from[p];
    if (p + kAhead < k) {
      const T* upcoming = from[p + kAhead];
      for (int64_t j = 0; j < count; j += kLineElements<T>) hwy::Prefetch(upcoming + j);
    }
    float* out = to;
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth, out += kWidth * k) copy_line<kWidth>(line + i, out);
    if (i == count) continue;
    for (int64_t j = 0; j < kWidth; ++j) out[j] = i + j < count ? in_float32(line[i + j]) : 0.0f;
  }
}

/// Packs pairs (from[2p][i], from[2p + 1][i]) of bfloat16 for i < count and first <= p < first + k.
/// Row q of `from` starts at q * stride, or at line[q] * stride if `line` is not null. Rows from
/// `terms` on count as zero.
template <int64_t kWidth>
HWY_INLINE void pack_pairs(const BFloat16* from, int64_t stride, const int32_t* line, int64_t terms,
                           int64_t count, int64_t first, int64_t k, float* HWY_RESTRICT to) {
  constexpr int64_t kStep = kWidth % kLanes == 0 ? kLanes : kWidth % 4 == 0 && kLanes > 1 ? 4 : 1;
  const hn::CappedTag<uint32_t, static_cast<size_t>(kStep)> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  HWY_ALIGN static constexpr BFloat16 kNone[kTileColumns] = {};
  const auto term = [&](int64_t p) { return from + (line ? line[p] : p) * stride; };
  for (int64_t p = first; p < first + k; ++p, to += kWidth) {
    const BFloat16 *one = term(2 * p), *other = 2 * p + 1 < terms ? term(2 * p + 1) : nullptr;
    auto* out = reinterpret_cast<uint32_t*>(to);
    for (int64_t i = 0; i < count; i += kWidth, out += kWidth * k) {
      const BFloat16 *low = one + i, *high = other ? other + i : kNone;
      if (i + kWidth <= count) {
        for (int64_t j = 0; j < kWidth; j += kStep)
          hn::StoreU(hn::Or(hn::PromoteTo(d, hn::LoadU(d16, low + j)),
                            hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(d16, high + j)))),
                     d, out + j);
      } else {
        for (int64_t j = 0; j < kWidth; ++j)
          out[j] = i + j < count ? low[j] | static_cast<uint32_t>(high[j]) << 16 : 0;
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
