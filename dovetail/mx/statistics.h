#pragma once

#include <cstdint>

namespace dovetail::mx {

/// Statistics of a quantization, counted while it runs. A block with a NaN or an infinity counts in
/// `non_finite_blocks`. If it is poisoned (NonFinite in format.h), it also counts in `elements` and
/// `blocks`, but in no other member.
struct Statistics {
  int64_t elements = 0, blocks = 0;  ///< numbers of elements and blocks
  /// Number of blocks whose largest finite magnitude is 0, and of blocks with a NaN or an infinity.
  int64_t zero_blocks = 0, non_finite_blocks = 0;
  int64_t underflows = 0;  ///< number of nonzero elements that became zero
  /// Number of clamped elements: they exceed the format's largest number times the scale.
  int64_t saturations = 0;
  int64_t saturating_blocks = 0;  ///< number of blocks with clamped elements
  /// Number of blocks that would have clamped elements under ScaleMode::kFloor (format.h).
  int64_t floor_saturated_blocks = 0;
  uint32_t amax_bits = 0;  ///< largest finite magnitude, as float32 bits
  /// Smallest and largest scale byte of the blocks that are not zero. If all blocks are zero,
  /// min_scale exceeds max_scale.
  int min_scale = 255, max_scale = 0;
  /// Sums over finite elements x: of x^2, and of (x - dequantized x)^2.
  double signal = 0, error = 0;

  /// Adds the counts and sums of `other`. Takes the larger of two maxima, the smaller of two
  /// minima.
  void add(const Statistics& other);
  /// Returns the largest finite magnitude.
  float amax() const;
  double underflow_fraction() const;   ///< underflows / elements
  double saturation_fraction() const;  ///< saturations / elements
  /// Returns the signal-to-quantization-noise ratio in dB, 10 log10(signal / error). It is infinite
  /// if `error` is 0, and NaN if `signal` is 0.
  double sqnr_db() const;
};

}  // namespace dovetail::mx
