#pragma once

#include <cstdint>
#include <span>

#include "dovetail/ops/attention_simd.h"

namespace dovetail {

/// Heads of queries, keys or values, or their gradients: (batch, length, heads, head_dim) read at
/// `from`, written at `to`, which do not overlap.
struct RotaryPart {
  int64_t heads;
  bool rotated;  ///< copied otherwise, as values are
  HeadsView from;
  MutableHeadsView to;
};

/// Legend: B batch, T length, D head size. Rotates the first `rotary_dim` elements of each head in
/// pairs (i, i + rotary_dim / 2) and copies the rest. rotary_dim may be 0: all is copied.
struct RotaryProblem {
  Storage storage;
  int64_t batch, length, head_dim, rotary_dim;
  const float *cosine, *sine;  ///< (T, rotary_dim / 2), float32
  bool inverse;                ///< by the negated angle: the gradient
};

inline constexpr int kMaxRotaryParts = 3;

}  // namespace dovetail
