#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail {

/// Legend: B batch, T queries (the last T positions), S keys, H query heads, G key-value heads, D
/// head size.
struct AttentionShape {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  Storage storage;
  int64_t rotary_dim;
  /// (S, rotary_dim / 2) by position; null without rotary. Keys before position S - T are taken as
  /// rotated already.
  const float *cosine, *sine;
};

/// (B, T or S, heads, D) in the shape's storage; the last stride is 1. Strides in elements.
struct HeadsView {
  const void* data;
  int64_t batch_stride, time_stride, head_stride;
};
struct MutableHeadsView {
  void* data;
  int64_t batch_stride, time_stride, head_stride;
};

/// out (B, T, H, D); logsumexp (B, H, T) of the scaled scores, kept for backward.
void attention_forward(const AttentionShape& shape, const HeadsView& q, const HeadsView& k,
                       const HeadsView& v, const MutableHeadsView& out, float* logsumexp);

struct AttentionGradients {
  HeadsView out, dout;
  const float* logsumexp;
  MutableHeadsView dq, dk, dv;
};

/// Every element of dq, dk and dv is written. One task a key-value head, so sums have one order for
/// any number of threads.
void attention_backward(const AttentionShape& shape, const HeadsView& q, const HeadsView& k,
                        const HeadsView& v, const AttentionGradients& gradients);

}  // namespace dovetail
