#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

/// Sizes of an attention. Names of dimensions: B batch, T queries (the last T positions), S keys, H
/// query heads, G key-value heads, D head size.
struct AttentionShape {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  Storage storage;
  int64_t rotary_dim;
  /// Rotary table (S, rotary_dim / 2) by position; null without rotary positions. Keys before
  /// position S - T must already be rotated.
  const float *cosine, *sine;
};

/// View of heads (B, T or S, heads, D) in the shape's storage. The last stride is 1. Strides are in
/// elements.
struct HeadsView {
  const void* data;
  int64_t batch_stride, time_stride, head_stride;
};
struct MutableHeadsView {
  void* data;
  int64_t batch_stride, time_stride, head_stride;
};

/// Computes out (B, T, H, D), and logsumexp (B, H, T) of the scaled scores for backward.
void attention_forward(const AttentionShape& shape, const HeadsView& q, const HeadsView& k,
                       const HeadsView& v, const MutableHeadsView& out, float* logsumexp);

struct AttentionGradients {
  HeadsView out, dout;
  const float* logsumexp;
  MutableHeadsView dq, dk, dv;
};

/// Computes all elements of dq, dk and dv. One task computes one key-value head, so sums have one
/// order for any number of threads.
void attention_backward(const AttentionShape& shape, const HeadsView& q, const HeadsView& k,
                        const HeadsView& v, const AttentionGradients& gradients);

}  // namespace dovetail::ops
