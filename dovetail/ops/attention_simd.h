#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

/// Sizes and rotary table of an attention. Names of dimensions: B batch, T queries (the last T
/// positions), S keys, H query heads, G key-value heads, D head size.
struct AttentionShape {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  Storage storage;
  int64_t rotary_dim;
  /// Rotary table (S, rotary_dim / 2) by position, float32; null without rotary positions. The
  /// kernels rotate all queries, and the keys from position S - T on. Keys at earlier positions
  /// come from a cache and must already be rotated.
  const float *cosine, *sine;
};

/// View of the heads of queries, keys or values: (B, T or S, heads, D), in
/// `AttentionShape::storage`. The stride of D is 1. Strides are in elements.
struct HeadsView {
  const void* data;
  int64_t batch_stride, time_stride, head_stride;
};
struct MutableHeadsView {
  void* data;
  int64_t batch_stride, time_stride, head_stride;
};

/// Computes out (B, T, H, D). Also writes the log-sum-exp of the scaled scores, (B, H, T), for
/// backward.
void attention_forward(const AttentionShape& shape, const HeadsView& q, const HeadsView& k,
                       const HeadsView& v, const MutableHeadsView& out, float* logsumexp);

/// Arguments of backward: the result `out` of forward, its gradient `dout`, and the results dq, dk
/// and dv.
struct AttentionGradients {
  HeadsView out, dout;
  const float* logsumexp;  ///< (B, H, T), from forward
  MutableHeadsView dq, dk, dv;
};

/// Computes all elements of dq, dk and dv. One task computes one key-value head of one batch entry.
/// So sums have the same order for any number of threads.
void attention_backward(const AttentionShape& shape, const HeadsView& q, const HeadsView& k,
                        const HeadsView& v, const AttentionGradients& gradients);

}  // namespace dovetail::ops
