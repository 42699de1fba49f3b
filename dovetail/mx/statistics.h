#pragma once

#include <cstdint>

namespace dovetail::mx {

/// Statistics of a quantization, counted while it runs. Blocks with a NaN or an infinity count as
/// `non_finite_blocks`. If such blocks are poisoned (NonFinite in format.h), they otherwise add
/// only to `elements` and `blocks`.
struct Statistics {
  int64_t elements = 0, blocks = 0;
  int64_t zero_blocks = 0, non_finite_blocks = 0;
  int64_t underflows = 0;  ///< nonzero elements that became zero
  /// Elements that were clamped, because they exceed the format's largest number times the scale.
  int64_t saturations = 0;
  int64_t saturating_blocks = 0;  ///< blocks with clamped elements
  /// Blocks that would have clamped elements under ScaleMode::kFloor (format.h).
  int64_t floor_saturated_blocks = 0;
  uint32_t amax_bits = 0;  ///< largest finite magnitude, as float32 bits
  /// Smallest and largest scale byte of the blocks that are not zero. If all blocks are zero,
  /// min_scale exceeds max_scale.
  int min_scale = 255, max_scale = 0;
  /// Sums of x^2 and of (x - dequantized x)^2, over finite elements.
  double signal = 0, error = 0;

  /// Adds counts and sums of `other`; combines maxima and minima.
  void add(const Statistics& other);
  /// Returns the largest finite magnitude.
  float amax() const;
  double underflow_fraction() const;   ///< underflows / elements
  double saturation_fraction() const;  ///< saturations / elements
  /// Returns the signal-to-quantization-noise ratio in dB, 10 log10(signal / error). It is infinite
  /// without error, and NaN without signal.
  double sqnr_db() const;
};

}  // namespace dovetail::mx
