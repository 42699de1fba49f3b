#pragma once

#include <cstdint>
#include <span>

#include "dovetail/ops/attention_simd.h"

namespace dovetail::ops {

/// Heads of queries, keys or values, or their gradients, (batch, length, heads, head_dim). They are
/// read at `from` and written at `to`, which must not overlap.
struct RotaryPart {
  int64_t heads;
  bool rotated;  ///< false: the heads are copied without rotation, as for values
  HeadsView from;
  MutableHeadsView to;
};

/// Rotation of heads by rotary positions. The first `rotary_dim` elements of each head are rotated
/// in pairs (i, i + rotary_dim / 2). All other elements are copied; rotary_dim may be 0.
struct RotaryProblem {
  Storage storage;
  int64_t batch, length, head_dim, rotary_dim;
  const float *cosine, *sine;  ///< functions of the angles, (length, rotary_dim / 2) float32
  bool inverse;                ///< rotate by the negated angles, as the gradient does
};

/// Maximum number of parts in one launch: queries, keys and values.
inline constexpr int kMaxRotaryParts = 3;

}  // namespace dovetail::ops
