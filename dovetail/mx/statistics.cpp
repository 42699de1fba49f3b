#include "dovetail/mx/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace dovetail::mx {

namespace {

double fraction(int64_t count, int64_t of) {
  return of == 0 ? 0 : static_cast<double>(count) / static_cast<double>(of);
}

}  // namespace

void Statistics::add(const Statistics& other) {
  elements += other.elements;
  blocks += other.blocks;
  zero_blocks += other.zero_blocks;
  non_finite_blocks += other.non_finite_blocks;
  underflows += other.underflows;
  saturations += other.saturations;
  saturating_blocks += other.saturating_blocks;
  floor_saturated_blocks += other.floor_saturated_blocks;
  amax_bits = std::max(amax_bits, other.amax_bits);
  min_scale = std::min(min_scale, other.min_scale);
  max_scale = std::max(max_scale, other.max_scale);
  signal += other.signal;
  error += other.error;
}

float Statistics::amax() const { return std::bit_cast<float>(amax_bits); }
double Statistics::underflow_fraction() const { return fraction(underflows, elements); }
double Statistics::saturation_fraction() const { return fraction(saturations, elements); }

double Statistics::sqnr_db() const {
  if (signal == 0) return std::numeric_limits<double>::quiet_NaN();
  return error == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / error);
}

}  // namespace dovetail::mx
