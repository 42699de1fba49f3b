#pragma once

#include <cstdint>

namespace dovetail::mx {

/// What one quantization did to a tensor, counted while it quantized. Blocks with a NaN or an
/// infinity count as `non_finite_blocks`; where these are poisoned, nothing else of them is counted
/// but their elements.
struct Statistics {
  int64_t elements = 0, blocks = 0;
  int64_t zero_blocks = 0, non_finite_blocks = 0;
  int64_t underflows = 0;  ///< elements that were not zero and became zero
  int64_t saturations =
      0;  ///< elements beyond the format's largest number times the scale, clamped to it
  int64_t saturating_blocks = 0;  ///< blocks with such elements
  int64_t floor_saturated_blocks =
      0;                   ///< blocks that would have such elements under scale mode `floor`
  uint32_t amax_bits = 0;  ///< largest finite magnitude, as the bits of a float32
  int min_scale = 255,
      max_scale = 0;  ///< bytes, over blocks that are not zero; min > max when there are none
  double signal = 0, error = 0;  ///< sums of x^2 and of (x - dequantized x)^2, over finite elements

  void add(const Statistics& other);
  float amax() const;
  double underflow_fraction() const;   ///< of all elements
  double saturation_fraction() const;  ///< of all elements
  double sqnr_db() const;  ///< 10 log10(signal / error); infinite without error, NaN without signal
};

}  // namespace dovetail::mx
