#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/attention_backward_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "dovetail/base/threads.h"
#include "dovetail/ops/attention_rows_inl.h"
#include "dovetail/ops/attention_simd.h"
#include "dovetail/ops/workspace.h"
#include "hwy/highway.h"

// Backward of flash attention. Probabilities are recomputed from the log-sum-exp of forward. With s
// = q k / sqrt(D), p = softmax(s):
//   dv = p^T do;  dp = do v^T;  ds = p (dp - rowsum(do o));
//   dq = ds k / sqrt(D);  dk = ds^T q / sqrt(D).

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

/// Buffers of one task, which handles one key-value head. Rows are `width` floats long.
struct BackwardBuffers {
  float *key_rows, *key_panels, *value_panels, *dkey_rows, *dvalue_rows;  // S rows
  float *query_rows, *queries, *dout_rows, *douts, *dqueries;  // a strip: [query][d] and [d][query]
  float *probabilities, *dscores;                              // [key][query]
  float *delta, *logsumexp;                                    // [query]
  int64_t keys, width;                                         // S rounded up to whole panels
};

BackwardBuffers backward_buffers(const AttentionShape& s) {
  BackwardBuffers f;
  f.keys = round_up(s.keys, kHeadRows);
  f.width = padded_head_dim(s);
  const int64_t all = f.keys * f.width, strip = kQueries * f.width, block = kKeys * kQueries;
  float* next = workspace(Workspace::kAttention,
                          static_cast<size_t>(5 * all + 5 * strip + 2 * block + 2 * kQueries));
  const auto take = [&next](int64_t count) {
    float* taken = next;
    next += count;
    return taken;
  };
  for (float** buffer : {&f.key_rows, &f.key_panels, &f.value_panels, &f.dkey_rows, &f.dvalue_rows})
    *buffer = take(all);
  for (float** buffer : {&f.query_rows, &f.queries, &f.dout_rows, &f.douts, &f.dqueries})
    *buffer = take(strip);
  for (float** buffer : {&f.probabilities, &f.dscores}) *buffer = take(block);
  for (float** buffer : {&f.delta, &f.logsumexp}) *buffer = take(kQueries);
  return f;
}

/// Loads the queries and output gradients of a strip in both layouts. Computes delta = rowsum(dout
/// * out).
template <class T>
void load_strip(const AttentionShape& s, const HeadsView& q, const AttentionGradients& g,
                const BackwardBuffers& f, int64_t b, int64_t h, int64_t query) {
  const int64_t count = std::min(kQueries, s.queries - query);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  load_rows<T>(s, q, b, query, h, count, kQueries, query + s.keys - s.queries, scale, f.query_rows);
  transpose(Lines{f.query_rows, f.width}, kQueries, f.width, f.queries, kQueries);
  load_rows<T>(s, g.dout, b, query, h, count, kQueries, -1, 1.0f, f.dout_rows);
  transpose(Lines{f.dout_rows, f.width}, kQueries, f.width, f.douts, kQueries);
  // Missing queries of a short strip have zero rows: their probabilities of 1 are multiplied by
  // zero gradients.
  std::fill_n(f.delta, kQueries, 0.0f);
  std::fill_n(f.logsumexp, kQueries, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    const T* out = row_of<T>(g.out, b, query + i, h);
    const float* dout = f.dout_rows + i * f.width;
    FloatVector sum = splat(0.0f);
    for (int64_t d = 0; d < s.head_dim; d += kLanes)
      sum = hn::MulAdd(load(out + d, s.head_dim - d), load(dout + d), sum);
    f.delta[i] = sum_lanes(sum);
    f.logsumexp[i] = g.logsumexp[(b * s.heads + h) * s.queries + query + i];
  }
}

/// Replaces scores by probabilities, and dp by ds, in place.
HWY_INLINE void score_gradients(const AttentionShape& s, const BackwardBuffers& f, int64_t query,
                                int64_t key, int64_t keys) {
  const int64_t first_hidden = query + s.keys - s.queries + 1 - key;
#pragma GCC unroll 2
  for (int64_t j = 0; j < kTileVectors; ++j) {
    const FloatVector shift = load(f.logsumexp + j * kLanes), delta = load(f.delta + j * kLanes);
    for (int64_t i = 0; i < keys; ++i) {
      float *p_at = f.probabilities + i * kQueries + j * kLanes,
            *ds_at = f.dscores + i * kQueries + j * kLanes;
      FloatVector p = exponential_or_zero(hn::Sub(load(p_at), shift));
      if (i >= first_hidden) p = hn::IfThenZeroElse(hidden_lanes(s, query, key + i, j), p);
      store(p, p_at);
      store(hn::Mul(p, hn::Sub(load(ds_at), delta)), ds_at);
    }
  }
}

/// Computes sums[key][d] += sum over the strip's queries of weights[key][query] * rows[query][d].
HWY_INLINE void add_to_keys(const float* weights, int64_t keys, const float* rows, int64_t width,
                            float* sums) {
  for (int64_t d = 0; d < width; d += kTileColumns) {
    for (int64_t i = 0; i < keys; i += kHeadRows) {
      const auto tile =
          multiply<kHeadRows, kQueries>(kQueries, weights + i * kQueries, 1, rows + d, width);
      store_tile(tile, sums + i * width + d, width, kHeadRows, kTileColumns, TileInit::kAccumulate);
    }
  }
}

template <class T>
void store_query_gradients(const AttentionShape& s, const BackwardBuffers& f,
                           const MutableHeadsView& dq, int64_t b, int64_t h, int64_t query) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  transpose(Lines{f.dqueries, kQueries}, f.width, kQueries, f.query_rows, f.width);
  for (int64_t i = 0; i < std::min(kQueries, s.queries - query); ++i) {
    float* row = f.query_rows + i * f.width;
    if (s.rotary_dim > 0) rotate_row(s, query + i + s.keys - s.queries, -1.0f, row);
    T* to = row_of<T>(dq, b, query + i, h);
    for (int64_t d = 0; d < s.head_dim; d += kLanes)
      store(hn::Mul(load(row + d), splat(scale)), to + d, s.head_dim - d);
  }
}

template <class T>
void backward_strip(const AttentionShape& s, const HeadsView& q, const AttentionGradients& g,
                    const BackwardBuffers& f, int64_t b, int64_t h, int64_t query) {
  const int64_t limit = key_limit(s, query);
  load_strip<T>(s, q, g, f, b, h, query);
  std::fill_n(f.dqueries, f.width * kQueries, 0.0f);
  for (int64_t key = 0; key < limit; key += kKeys) {
    // Rounds the keys up to a whole panel. Keys beyond the limit are hidden from every query of the
    // strip, so they add zeros.
    const int64_t keys = round_up(std::min(limit, key + kKeys), kHeadRows) - key;
    score_block(f.key_panels, key, key + keys, f.width, f.queries, f.probabilities);
    score_block(f.value_panels, key, key + keys, f.width, f.douts, f.dscores);
    score_gradients(s, f, query, key, keys);
    add_to_keys(f.probabilities, keys, f.dout_rows, f.width, f.dvalue_rows + key * f.width);
    add_to_keys(f.dscores, keys, f.query_rows, f.width, f.dkey_rows + key * f.width);
    weigh_block(f.key_rows + key * f.width, keys, f.width, f.dscores, f.dqueries);
  }
  store_query_gradients<T>(s, f, g.dq, b, h, query);
}

template <class T>
void store_key_gradients(const AttentionShape& s, const BackwardBuffers& f,
                         const AttentionGradients& g, int64_t b, int64_t head) {
  const int64_t cached = s.keys - s.queries;
  for (int64_t t = 0; t < s.keys; ++t) {
    float* row = f.dkey_rows + t * f.width;
    if (s.rotary_dim > 0 && t >= cached) rotate_row(s, t, -1.0f, row);
    T *dk = row_of<T>(g.dk, b, t, head), *dv = row_of<T>(g.dv, b, t, head);
    for (int64_t d = 0; d < s.head_dim; d += kLanes) {
      store(load(row + d), dk + d, s.head_dim - d);
      store(load(f.dvalue_rows + t * f.width + d), dv + d, s.head_dim - d);
    }
  }
}

template <class T>
void backward(const AttentionShape& s, const HeadsView& q, const HeadsView& k, const HeadsView& v,
              const AttentionGradients& g) {
  parallel_pieces(s.batch * s.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const BackwardBuffers f = backward_buffers(s);
    const int64_t group = s.heads / s.kv_heads;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / s.kv_heads, head = i % s.kv_heads;
      // The rows of the gradient hold the values until these are packed.
      load_rows<T>(s, v, b, 0, head, s.keys, f.keys, -1, 1.0f, f.dvalue_rows);
      pack_panels(f.dvalue_rows, f.keys, f.width, f.value_panels);
      load_keys<T>(s, k, b, head, f.keys, f.key_rows);
      pack_panels(f.key_rows, f.keys, f.width, f.key_panels);
      std::fill_n(f.dkey_rows, f.keys * f.width, 0.0f);
      std::fill_n(f.dvalue_rows, f.keys * f.width, 0.0f);
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        for (int64_t query = 0; query < s.queries; query += kQueries)
          backward_strip<T>(s, q, g, f, b, h, query);
      }
      store_key_gradients<T>(s, f, g, b, head);
    }
  });
}

void AttentionBackward(const AttentionShape& s, const HeadsView& q, const HeadsView& k,
                       const HeadsView& v, const AttentionGradients& g) {
  return s.storage == Storage::kFloat32 ? backward<float>(s, q, k, v, g)
                                        : backward<BFloat16>(s, q, k, v, g);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(AttentionBackward);

void attention_backward(const AttentionShape& shape, const HeadsView& q, const HeadsView& k,
                        const HeadsView& v, const AttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(AttentionBackward)(shape, q, k, v, gradients);
}

}  // namespace dovetail::ops
#endif
