#pragma once

#include <cstdint>
#include <span>

#include "dovetail/ops/attention_simd.h"

namespace dovetail::ops {

/// One tensor to rotate (batch, length, heads, head_dim): queries, keys or values, or their
/// gradients. It is read at `from` and written at `to`. These must not overlap.
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
  /// Cosines and sines of the angles, (length, rotary_dim / 2) float32.
  const float *cosine, *sine;
  bool inverse;  ///< rotate by the negated angles, as the gradient does
};

/// Maximum number of parts in one launch: queries, keys and values.
inline constexpr int kMaxRotaryParts = 3;

}  // namespace dovetail::ops
