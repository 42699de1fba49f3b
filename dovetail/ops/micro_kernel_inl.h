// The register tile that every FP32 matrix product of ours is made of, and the packing of its operands.
// Compiled once per instruction set: included by *_simd.cpp after simd_config.h, through foreach_target.
#if defined(DOVETAIL_OPS_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_OPS_MICRO_KERNEL_INL_H_
#undef DOVETAIL_OPS_MICRO_KERNEL_INL_H_
#else
#define DOVETAIL_OPS_MICRO_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "dovetail/ops/simd_math_inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail {
namespace HWY_NAMESPACE {

// A tile of kTileRows x kTileColumns accumulators fills the registers: of AVX-512's 32, 24 accumulators, 2 of b, 1 of
// a; of AVX2's 16, 12 + 2 + 1.
constexpr int kTileVectors = 2;
constexpr int64_t kTileColumns = kTileVectors * kLanes;
#if HWY_TARGET == HWY_AVX3
constexpr int kTileRows = 12;
#elif HWY_TARGET == HWY_AVX2
constexpr int kTileRows = 6;
#else
constexpr int kTileRows = 4;
#endif

constexpr int64_t kPrefetchSteps = 6;

template <int kRows>
struct Tile {
  FloatVector v[kRows][kTileVectors];
};

/// Memory that will be needed after a product, asked for while it runs: `count` places `step` floats apart, one every
/// kUpcomingSteps terms, and two lines from `strip` on in the same time.
struct Upcoming {
  const float* strip = nullptr;  ///< null: nothing is asked for
  const float* at = nullptr;
  int64_t step = 0, count = 0;
};
constexpr int64_t kUpcomingSteps = 8;
constexpr int64_t kLineFloats = 64 / sizeof(float);

/// One term of each element of a tile.
template <int kRows, int kRowStride>
HWY_INLINE void multiply_step(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t b_step,
                              Tile<kRows>& tile) {
  const FloatTag d;
  // b streams from the second-level cache: ask for it some steps ahead. Beyond its end this is only a hint.
  hwy::Prefetch(b + kPrefetchSteps * b_step);
  if constexpr (kTileColumns * sizeof(float) > 64) hwy::Prefetch(b + kPrefetchSteps * b_step + kTileColumns / 2);
  const FloatVector b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + kLanes);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const FloatVector ar = hn::Set(d, a[r * kRowStride]);
    tile.v[r][0] = hn::MulAdd(ar, b0, tile.v[r][0]);
    tile.v[r][1] = hn::MulAdd(ar, b1, tile.v[r][1]);
  }
}

/// tile[r][j] = sum over p < k of a[r * kRowStride + p * a_step] * b[p * b_step + j], added in the order of p.
template <int kRows, int kRowStride>
HWY_INLINE Tile<kRows> multiply(int64_t k, const float* HWY_RESTRICT a, int64_t a_step, const float* HWY_RESTRICT b,
                                int64_t b_step, Upcoming upcoming = {}) {
  const FloatTag d;
  Tile<kRows> tile;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    tile.v[r][0] = hn::Zero(d);
    tile.v[r][1] = hn::Zero(d);
  }
  for (; upcoming.strip && k >= kUpcomingSteps; k -= kUpcomingSteps) {
    constexpr int kSecondLevel = 2;  // of the caches
    if (upcoming.count-- > 0) __builtin_prefetch(upcoming.at, 0, kSecondLevel);
    upcoming.at += upcoming.step;
#pragma GCC unroll 1
    for (int half = 0; half < 2; ++half, upcoming.strip += kLineFloats) {
      __builtin_prefetch(upcoming.strip, 0, kSecondLevel);
      for (int64_t p = 0; p < kUpcomingSteps / 2; ++p, a += a_step, b += b_step)
        multiply_step<kRows, kRowStride>(a, b, b_step, tile);
    }
  }
  for (; k > 0; --k, a += a_step, b += b_step) multiply_step<kRows, kRowStride>(a, b, b_step, tile);
  return tile;
}

/// Asks for the lines of c that `store_tile` will touch, to be there when the product is done.
template <int kRows>
HWY_INLINE void prefetch_tile(const float* c, int64_t ldc) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    hwy::Prefetch(c + r * ldc);
    hwy::Prefetch(c + r * ldc + kTileColumns - 1);
  }
}

/// What a tile is added to on its way to memory.
enum class TileInit { kZero, kAccumulate, kBias };

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
      if constexpr (kInit == TileInit::kBias) value = hn::Add(hn::LoadU(d, bias + j * kLanes), value);
      hn::StoreU(value, d, to);
    }
  }
}

/// c [+]= the `rows` x `columns` corner of a tile that was stored contiguously.
inline HWY_NOINLINE void store_corner(const float* tile, float* c, int64_t ldc, int64_t rows, int64_t columns,
                                      TileInit init, const float* bias) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      const float value = tile[r * kTileColumns + j];
      float& to = c[r * ldc + j];
      to = init == TileInit::kAccumulate ? to + value : init == TileInit::kBias ? bias[j] + value : value;
    }
  }
}

/// The `rows` x `columns` corner of the tile goes to c.
template <int kRows>
HWY_INLINE void store_tile(const Tile<kRows>& tile, float* c, int64_t ldc, int64_t rows, int64_t columns, TileInit init,
                           const float* bias = nullptr) {
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

/// to[p * to_stride + i] = from[i * from_stride + p] for i < count and p < k.
HWY_INLINE void transpose(const float* HWY_RESTRICT from, int64_t from_stride, int64_t count, int64_t k,
                          float* HWY_RESTRICT to, int64_t to_stride) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> dw;
  for (; i + 4 <= count; i += 4) {
    const float* r0 = from + i * from_stride;
    const float *r1 = r0 + from_stride, *r2 = r1 + from_stride, *r3 = r2 + from_stride;
    float* out = to + i;
    int64_t p = 0;
    for (const int64_t whole = k / 4 * 4; p < whole; p += 4, out += 4 * to_stride) {
      const auto v0 = hn::LoadU(d, r0 + p), v1 = hn::LoadU(d, r1 + p), v2 = hn::LoadU(d, r2 + p),
                 v3 = hn::LoadU(d, r3 + p);
      const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v0, v1));
      const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v2, v3));
      const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v0, v1));
      const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v2, v3));
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, low01, low23)), d, out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23)), d, out + to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, high01, high23)), d, out + 2 * to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23)), d, out + 3 * to_stride);
    }
    for (; p < k; ++p, out += to_stride) {
      out[0] = r0[p];
      out[1] = r1[p];
      out[2] = r2[p];
      out[3] = r3[p];
    }
  }
#endif
  for (; i < count; ++i) {
    for (int64_t p = 0; p < k; ++p) to[p * to_stride + i] = from[i * from_stride + p];
  }
}

// A packed operand is a row of tiles, each kWidth rows of a or columns of b wide: [tile][term][row or column of the
// tile]. What the last tile lacks is zero.

/// Packs from[i * stride + p] for i < count and p < k.
template <int64_t kWidth>
HWY_INLINE void pack_transposed(const float* HWY_RESTRICT from, int64_t stride, int64_t count, int64_t k,
                                float* HWY_RESTRICT to) {
  for (; count > 0; count -= kWidth, from += kWidth * stride, to += kWidth * k) {
    const int64_t filled = std::min(count, kWidth);
    transpose(from, stride, filled, k, to, kWidth);
    for (int64_t p = 0; filled < kWidth && p < k; ++p) std::fill_n(to + p * kWidth + filled, kWidth - filled, 0.0f);
  }
}

/// Packs from[p * stride + i] for i < count and p < k, in the order of memory: terms outside, so that each line and
/// each page is met once.
template <int64_t kWidth>
HWY_INLINE void pack_straight(const float* HWY_RESTRICT from, int64_t stride, int64_t count, int64_t k,
                              float* HWY_RESTRICT to) {
  for (int64_t p = 0; p < k; ++p, from += stride, to += kWidth) {
    float* out = to;
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth, out += kWidth * k) std::memcpy(out, from + i, kWidth * sizeof(float));
    if (i < count) std::fill(std::copy(from + i, from + count, out), out + kWidth, 0.0f);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
