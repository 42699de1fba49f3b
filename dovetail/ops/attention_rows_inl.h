// Building blocks of the attention kernels. They load rows of heads as float32, rotated and padded,
// and multiply blocks of keys and queries. Compiled once per instruction set: included by
// *_simd.cpp after simd_config.h, through Highway's foreach_target.
#if defined(DOVETAIL_OPS_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_OPS_ATTENTION_ROWS_INL_H_
#undef DOVETAIL_OPS_ATTENTION_ROWS_INL_H_
#else
#define DOVETAIL_OPS_ATTENTION_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "dovetail/ops/attention_simd.h"
#include "dovetail/ops/micro_kernel_inl.h"
#include "dovetail/ops/simd_math_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

// Rows of a tile of accumulators in the products of attention. Usual head sizes are multiples of
// this number, but not of the 12 or 6 rows in GEMM.
#if HWY_TARGET == HWY_AVX3
constexpr int kHeadRows = 8;
#else
constexpr int kHeadRows = 4;
#endif
// Number of queries that are processed together (a strip). A strip fills the columns of a tile. So
// each lane holds the softmax statistics of one query, and no horizontal sums are needed.
constexpr int64_t kQueries = kTileColumns;
// Number of keys per block. The scores of a block (kKeys x kQueries) stay in the first-level cache.
constexpr int64_t kKeys = 128;

HWY_INLINE int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Returns the padded head size: a multiple of kTileColumns and of kHeadRows. Elements of a row
/// beyond the head size are zero.
HWY_INLINE int64_t padded_head_dim(const AttentionShape& s) {
  return round_up(s.head_dim, round_up(kTileColumns, kHeadRows));
}

/// Returns the row of batch entry b, position t and head h.
template <class T>
HWY_INLINE const T* row_of(const HeadsView& view, int64_t b, int64_t t, int64_t h) {
  return static_cast<const T*>(view.data) + b * view.batch_stride + t * view.time_stride +
         h * view.head_stride;
}
template <class T>
HWY_INLINE T* row_of(const MutableHeadsView& view, int64_t b, int64_t t, int64_t h) {
  return static_cast<T*>(view.data) + b * view.batch_stride + t * view.time_stride +
         h * view.head_stride;
}

/// Converts `count` elements to float32, multiplies them by `scale` and writes them to `to`.
template <class T>
HWY_INLINE void load_row(const T* from, int64_t count, float scale, float* to) {
  for (int64_t i = 0; i < count; i += kLanes)
    store(hn::Mul(load(from + i, count - i), splat(scale)), to + i, count - i);
}

/// Rotates pairs (i, i + half) of `row` by the angles of rotary position `position`. Rotates
/// backwards if `direction` is -1, and forwards if it is 1.
HWY_INLINE void rotate_row(const AttentionShape& s, int64_t position, float direction, float* row) {
  const int64_t half = s.rotary_dim / 2;
  const float *cosine = s.cosine + position * half, *sine = s.sine + position * half;
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const FloatVector c = load(cosine + i, left),
                      n = hn::Mul(splat(direction), load(sine + i, left));
    const FloatVector a = load(row + i, left), b = load(row + half + i, left);
    store(hn::NegMulAdd(b, n, hn::Mul(a, c)), row + i, left);
    store(hn::MulAdd(a, n, hn::Mul(b, c)), row + half + i, left);
  }
}

/// Loads rows [t, t + count) of head h of batch entry b to `to` (rows, padded head size), times
/// `scale`. Elements beyond the head size, and rows from `count` on, are set to zero. `position` is
/// the rotary position of row t; if it is negative, rows are not rotated.
template <class T>
void load_rows(const AttentionShape& s, const HeadsView& view, int64_t b, int64_t t, int64_t h,
               int64_t count, int64_t rows, int64_t position, float scale, float* to) {
  const int64_t width = padded_head_dim(s);
  for (int64_t i = 0; i < rows; ++i, to += width) {
    if (i >= count) {
      std::fill_n(to, width, 0.0f);
      continue;
    }
    load_row(row_of<T>(view, b, t + i, h), s.head_dim, scale, to);
    std::fill_n(to + s.head_dim, width - s.head_dim, 0.0f);
    if (position >= 0 && s.rotary_dim > 0) rotate_row(s, position + i, 1.0f, to);
  }
}

/// Loads all S keys of key-value head g of batch entry b, rotated, to `to` (rows, padded head
/// size). The first S - T keys come from a cache and are already rotated in memory.
template <class T>
void load_keys(const AttentionShape& s, const HeadsView& k, int64_t b, int64_t g, int64_t rows,
               float* to) {
  const int64_t cached = s.keys - s.queries;
  load_rows<T>(s, k, b, 0, g, cached, cached, -1, 1.0f, to);
  load_rows<T>(s, k, b, cached, g, s.queries, rows - cached, cached, 1.0f,
               to + cached * padded_head_dim(s));
}

/// Packs `from` (rows, width) as panels of kHeadRows rows. A panel is stored as [d][row of the
/// panel], where d is the index of an element in its row. `rows` is a multiple of kHeadRows.
HWY_INLINE void pack_panels(const float* from, int64_t rows, int64_t width, float* to) {
  pack_transposed<kHeadRows>(Lines{from, width}, rows, width, to);
}

/// Computes scores[i][query] for the keys from `key` to `key_end` (excluded) and a strip of
/// queries. The score is the dot product of key `key` + i and the query. `panels` has all keys as
/// `pack_panels` packs them. `queries` is [d][query], where d is the index in the head.
HWY_INLINE void score_block(const float* panels, int64_t key, int64_t key_end, int64_t width,
                            const float* queries, float* scores) {
  for (int64_t i = key; i < key_end; i += kHeadRows) {
    const auto tile =
        multiply<kHeadRows, 1>(width, panels + i * width, kHeadRows, queries, kTileColumns);
    store_tile(tile, scores + (i - key) * kQueries, kQueries, kHeadRows, kTileColumns,
               TileInit::kZero);
  }
}

/// Computes sums[d][query] += sum over keys of rows[key][d] * weights[key][query]. `width` is the
/// padded head size.
HWY_INLINE void weigh_block(const float* rows, int64_t keys, int64_t width, const float* weights,
                            float* sums) {
  for (int64_t d = 0; d < width; d += kHeadRows) {
    const auto tile = multiply<kHeadRows, 1>(keys, rows + d, width, weights, kQueries);
    store_tile(tile, sums + d * kQueries, kQueries, kHeadRows, kTileColumns, TileInit::kAccumulate);
  }
}

/// Returns the number of keys that a strip of queries may see. The strip begins at `query`. Keys
/// from this index on are hidden from all its queries.
HWY_INLINE int64_t key_limit(const AttentionShape& s, int64_t query) {
  return std::min(s.keys, query + kQueries + s.keys - s.queries);
}

/// Returns a mask of the lanes whose queries must not see `key`. The lanes are in vector j of a
/// strip that begins at `query`.
HWY_INLINE auto hidden_lanes(const AttentionShape& s, int64_t query, int64_t key, int64_t j) {
  const FloatVector position =
      hn::Add(hn::Iota(FloatTag(), 0.0f), splat(static_cast<float>(j * kLanes)));
  return hn::Lt(position, splat(static_cast<float>(key - (query + s.keys - s.queries))));
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
