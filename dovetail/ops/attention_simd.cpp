#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/attention_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "dovetail/base/threads.h"
#include "dovetail/ops/attention_rows_inl.h"
#include "dovetail/ops/attention_simd.h"
#include "dovetail/ops/workspace.h"
#include "hwy/highway.h"

// Flash attention (Dao et al. 2022, 2023) with all operands transposed. Scores are [key][query], so
// that a strip of queries fills the columns of a tile. Softmax runs down the lanes. The
// probabilities are then the packed right operand of the next product.

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

/// Buffers of one task, taken from the thread's workspace.
struct ForwardBuffers {
  float *keys, *values, *rows, *queries, *scores, *sums;
  int64_t key_rows, width;
};

ForwardBuffers forward_buffers(const AttentionShape& s) {
  ForwardBuffers f;
  f.key_rows = round_up(s.keys, kHeadRows);
  f.width = padded_head_dim(s);
  // Rows before packing and the query's own rows share a buffer: they are never needed together.
  const int64_t rows = std::max(f.key_rows, kQueries) * f.width, strip = kQueries * f.width;
  float* next = workspace(
      Workspace::kAttention,
      static_cast<size_t>(2 * f.key_rows * f.width + rows + 2 * strip + kKeys * kQueries));
  const auto take = [&next](int64_t count) {
    float* taken = next;
    next += count;
    return taken;
  };
  f.keys = take(f.key_rows * f.width);
  f.values = take(f.key_rows * f.width);
  f.rows = take(rows);
  f.queries = take(strip);
  f.sums = take(strip);
  f.scores = take(kKeys * kQueries);
  return f;
}

/// Running maximum and running sum of each query of a strip.
struct SoftmaxState {
  FloatVector maximum[kTileVectors], sum[kTileVectors];
};

/// Replaces the scores of a block by e^(score - maximum). Rescales `sums` and the state to the new
/// maximum.
HWY_INLINE void softmax_block(float* scores, int64_t keys, SoftmaxState& state, float* sums,
                              int64_t width) {
#pragma GCC unroll 2
  for (int j = 0; j < kTileVectors; ++j) {
    FloatVector maximum = state.maximum[j];
    for (int64_t i = 0; i < keys; ++i)
      maximum = hn::Max(maximum, load(scores + i * kQueries + j * kLanes));
    const FloatVector shrink = exponential_or_zero(hn::Sub(state.maximum[j], maximum));
    FloatVector sum = hn::Mul(state.sum[j], shrink);
    for (int64_t i = 0; i < keys; ++i) {
      float* at = scores + i * kQueries + j * kLanes;
      const FloatVector p = exponential_or_zero(hn::Sub(load(at), maximum));
      sum = hn::Add(sum, p);
      store(p, at);
    }
    for (int64_t d = 0; d < width; ++d) {
      float* at = sums + d * kQueries + j * kLanes;
      store(hn::Mul(load(at), shrink), at);
    }
    state.maximum[j] = maximum;
    state.sum[j] = sum;
  }
}

/// Sets scores to minus infinity where a query must not see a key. `key` is the first key of the
/// block.
HWY_INLINE void hide_future(const AttentionShape& s, int64_t query, int64_t key, int64_t keys,
                            float* scores) {
  const int64_t first = std::max<int64_t>(0, query + s.keys - s.queries + 1 - key);
  const FloatVector minus_infinity = splat(-std::numeric_limits<float>::infinity());
  for (int64_t i = first; i < keys; ++i) {
    for (int64_t j = 0; j < kTileVectors; ++j) {
      float* at = scores + i * kQueries + j * kLanes;
      store(hn::IfThenElse(hidden_lanes(s, query, key + i, j), minus_infinity, load(at)), at);
    }
  }
}

template <class T>
void forward_strip(const AttentionShape& s, const HeadsView& q, const ForwardBuffers& f, int64_t b,
                   int64_t h, int64_t query, const MutableHeadsView& out, float* logsumexp) {
  const int64_t count = std::min(kQueries, s.queries - query), limit = key_limit(s, query);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  load_rows<T>(s, q, b, query, h, count, kQueries, query + s.keys - s.queries, scale, f.rows);
  transpose(Lines{f.rows, f.width}, kQueries, f.width, f.queries, kQueries);
  std::fill_n(f.sums, f.width * kQueries, 0.0f);
  SoftmaxState state;
  for (int j = 0; j < kTileVectors; ++j) {
    state.maximum[j] = splat(-std::numeric_limits<float>::infinity());
    state.sum[j] = splat(0.0f);
  }
  for (int64_t key = 0; key < limit; key += kKeys) {
    const int64_t end = std::min(limit, key + kKeys);
    score_block(f.keys, key, round_up(end, kHeadRows), f.width, f.queries, f.scores);
    hide_future(s, query, key, end - key, f.scores);
    softmax_block(f.scores, end - key, state, f.sums, f.width);
    weigh_block(f.values + key * f.width, end - key, f.width, f.scores, f.sums);
  }
  HWY_ALIGN float maximum[kQueries], sum[kQueries];
  for (int j = 0; j < kTileVectors; ++j) {
    store(state.maximum[j], maximum + j * kLanes);
    store(state.sum[j], sum + j * kLanes);
  }
  transpose(Lines{f.sums, kQueries}, f.width, kQueries, f.rows, f.width);
  for (int64_t i = 0; i < count; ++i) {
    const float* row = f.rows + i * f.width;
    T* to = row_of<T>(out, b, query + i, h);
    const FloatVector inverse = splat(1.0f / sum[i]);
    for (int64_t d = 0; d < s.head_dim; d += kLanes)
      store(hn::Mul(load(row + d), inverse), to + d, s.head_dim - d);
    logsumexp[i] = maximum[i] + std::log(sum[i]);
  }
}

template <class T>
void forward(const AttentionShape& s, const HeadsView& q, const HeadsView& k, const HeadsView& v,
             const MutableHeadsView& out, float* logsumexp) {
  parallel_pieces(s.batch * s.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const ForwardBuffers f = forward_buffers(s);
    const int64_t group = s.heads / s.kv_heads;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / s.kv_heads, g = i % s.kv_heads;
      load_keys<T>(s, k, b, g, f.key_rows, f.rows);
      pack_panels(f.rows, f.key_rows, f.width, f.keys);
      load_rows<T>(s, v, b, 0, g, s.keys, f.key_rows, -1, 1.0f, f.values);
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        for (int64_t query = 0; query < s.queries; query += kQueries)
          forward_strip<T>(s, q, f, b, h, query, out,
                           logsumexp + (b * s.heads + h) * s.queries + query);
      }
    }
  });
}

void AttentionForward(const AttentionShape& s, const HeadsView& q, const HeadsView& k,
                      const HeadsView& v, const MutableHeadsView& out, float* logsumexp) {
  return s.storage == Storage::kFloat32 ? forward<float>(s, q, k, v, out, logsumexp)
                                        : forward<BFloat16>(s, q, k, v, out, logsumexp);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(AttentionForward);

void attention_forward(const AttentionShape& shape, const HeadsView& q, const HeadsView& k,
                       const HeadsView& v, const MutableHeadsView& out, float* logsumexp) {
  HWY_DYNAMIC_DISPATCH(AttentionForward)(shape, q, k, v, out, logsumexp);
}

}  // namespace dovetail::ops
#endif
