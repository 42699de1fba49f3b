#pragma once

#include <cstdint>

namespace dovetail::mx {

/// Statistics of a quantization, counted while it runs. Blocks with a NaN or an infinity count as
/// `non_finite_blocks`. If they are poisoned, they otherwise add only to `elements` and `blocks`.
struct Statistics {
  int64_t elements = 0, blocks = 0;
  int64_t zero_blocks = 0, non_finite_blocks = 0;
  int64_t underflows = 0;  ///< nonzero elements that became zero
  /// Elements clamped because they exceed the format's largest number times the scale.
  int64_t saturations = 0;
  int64_t saturating_blocks = 0;  ///< blocks with clamped elements
  /// Blocks that would have clamped elements under scale mode `floor`.
  int64_t floor_saturated_blocks = 0;
  uint32_t amax_bits = 0;  ///< largest finite magnitude, as float32 bits
  /// Scale bytes, over blocks that are not zero. min > max if all blocks are zero.
  int min_scale = 255, max_scale = 0;
  double signal = 0, error = 0;  ///< sums of x^2 and of (x - dequantized x)^2, over finite elements

  void add(const Statistics& other);
  float amax() const;
  double underflow_fraction() const;   ///< fraction of all elements
  double saturation_fraction() const;  ///< fraction of all elements
  double sqnr_db() const;  ///< 10 log10(signal / error); infinite without error, NaN without signal
};

}  // namespace dovetail::mx
