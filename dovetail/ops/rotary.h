#pragma once

#include <cstdint>
#include <span>

#include "dovetail/ops/attention_simd.h"

namespace dovetail::ops {

/// Heads of queries, keys or values, or their gradients, (batch, length, heads, head_dim). They are
/// read at `from` and written at `to`, which must not overlap.
struct RotaryPart {
  int64_t heads;
  bool rotated;  ///< false: the heads are copied, as for values
  HeadsView from;
  MutableHeadsView to;
};

/// Rotation of the first `rotary_dim` elements of each head, in pairs (i, i + rotary_dim / 2). All
/// other elements are copied; rotary_dim may be 0. T = `length`.
struct RotaryProblem {
  Storage storage;
  int64_t batch, length, head_dim, rotary_dim;
  const float *cosine, *sine;  ///< (T, rotary_dim / 2), float32
  bool inverse;                ///< rotates by the negated angle, as the gradient does
};

inline constexpr int kMaxRotaryParts = 3;

}  // namespace dovetail::ops
