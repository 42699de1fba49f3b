#pragma once

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "dovetail/mx/tensor.h"
#include "tests/mx/reference.h"
#include "tests/ops/testing.h"

/// Tensors to quantize and the comparison of what came out, for the tests of dovetail::mx.
namespace dovetail::mx {

/// Sets this thread's flush-to-zero and denormals-are-zero bits while it lives.
class FlushDenormals {
 public:
  explicit FlushDenormals(bool flush) { at::globalContext().setFlushDenormal(flush); }
  ~FlushDenormals() { at::globalContext().setFlushDenormal(false); }
  FlushDenormals(const FlushDenormals&) = delete;
};

inline at::Tensor float_tensor(const std::vector<uint32_t>& bits, at::IntArrayRef sizes) {
  at::Tensor x = at::empty(sizes, at::kFloat);
  std::memcpy(x.mutable_data_ptr(), bits.data(), bits.size() * sizeof(uint32_t));
  return x;
}

/// Returns the bits of the numbers as float32, in row-major order.
inline std::vector<uint32_t> bits_of_tensor(const at::Tensor& x_in) {
  const at::Tensor x = x_in.contiguous();
  std::vector<uint32_t> bits(static_cast<size_t>(x.numel()));
  if (x.scalar_type() == at::kFloat) {
    std::memcpy(bits.data(), x.const_data_ptr(), bits.size() * sizeof(uint32_t));
    return bits;
  }
  const auto* from = static_cast<const uint16_t*>(x.const_data_ptr());
  const bool half = x.scalar_type() == at::kHalf;
  for (size_t i = 0; i < bits.size(); ++i) {
    const bool zero =
        (from[i] & 0x7fff) ==
        0;  // torch's function would count the leading zeros of 0: undefined behaviour
    bits[i] = half && !zero ? c10::detail::fp16_ieee_to_fp32_bits(from[i])
                            : static_cast<uint32_t>(from[i]) << 16;
  }
  return bits;
}

/// Returns normal values over three orders of magnitude, some of them zero.
inline at::Tensor ordinary_values(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  const at::Tensor x = dovetail::testing::normal(sizes, seed, at::kDouble);
  const at::Tensor spread = dovetail::testing::normal(sizes, seed + 1000, at::kDouble);
  return x.mul(spread.mul(2).exp()).mul(spread.lt(2)).to(dtype);
}

/// Returns the format's numbers and midpoints under all sorts of scales, exact or one ulp off, and
/// subnormal numbers. With `non_finite` some elements are NaN or infinity.
inline at::Tensor adversarial_values(at::IntArrayRef sizes, uint64_t seed, Format format,
                                     bool non_finite, at::ScalarType dtype) {
  const auto& table = reference::numbers(format);
  uint64_t index = 0;
  const auto below = [&](uint64_t bound) {
    return random_below(seed, RandomStream::kTest, index++, bound);
  };
  at::Tensor x = at::empty(sizes, dtype);
  const bool wide = dtype == at::kFloat;
  for (int64_t i = 0; i < x.numel(); ++i) {
    // Exponents change by row, so that most blocks hold numbers of one magnitude.
    const int64_t row = i / x.size(-1);
    const int exponents[] = {-130, -115, -80, -20, 0, 40, 110};
    const int exponent =
        exponents[row % 7] / (dtype == at::kHalf ? 8 : 1) + static_cast<int>(below(3));
    const size_t code = below(table.size() - 1);
    const double number =
        std::ldexp(below(2) ? table[code] : (table[code] + table[code + 1]) / 2, exponent);
    const auto rounded = static_cast<float>(std::min(number, 3e38));
    uint32_t bits = std::bit_cast<uint32_t>(rounded);
    if (dtype == at::kHalf) bits = c10::detail::fp16_ieee_from_fp32_value(rounded);
    if (dtype == at::kBFloat16) bits >>= 16;
    const uint32_t infinity = wide ? 0x7f800000 : dtype == at::kHalf ? 0x7c00 : 0x7f80;
    bits = std::min<uint32_t>(bits + (bits > 0 ? static_cast<uint32_t>(below(3)) - 1 : 0),
                              infinity - 1);
    if (non_finite && below(150) == 0) bits = infinity + static_cast<uint32_t>(below(2));
    if (below(20) == 0) bits = static_cast<uint32_t>(below(3));
    if (below(2)) bits |= wide ? 0x80000000 : 0x8000;
    auto* to = static_cast<char*>(x.mutable_data_ptr()) + i * x.element_size();
    std::memcpy(to, &bits, static_cast<size_t>(x.element_size()));
  }
  return x;
}

inline void expect_same(const MXTensor& actual, const Statistics& s,
                        const reference::Result& expected, const std::string& what) {
  const auto* codes = actual.codes().const_data_ptr<uint8_t>();
  const auto* scales = actual.scales().const_data_ptr<uint8_t>();
  ASSERT_EQ(actual.scales().numel(), static_cast<int64_t>(expected.scales.size())) << what;
  for (size_t i = 0; i < expected.scales.size(); ++i)
    ASSERT_EQ(scales[i], expected.scales[i]) << what << " block " << i;
  for (size_t i = 0; i < expected.codes.size(); ++i)
    ASSERT_EQ(int{codes[i]}, int{expected.codes[i]}) << what << " element " << i;
  const Statistics& e = expected.statistics;
  EXPECT_EQ(s.elements, e.elements) << what;
  EXPECT_EQ(s.blocks, e.blocks) << what;
  EXPECT_EQ(s.zero_blocks, e.zero_blocks) << what;
  EXPECT_EQ(s.non_finite_blocks, e.non_finite_blocks) << what;
  EXPECT_EQ(s.underflows, e.underflows) << what;
  EXPECT_EQ(s.saturations, e.saturations) << what;
  EXPECT_EQ(s.saturating_blocks, e.saturating_blocks) << what;
  EXPECT_EQ(s.floor_saturated_blocks, e.floor_saturated_blocks) << what;
  EXPECT_EQ(s.amax_bits, e.amax_bits) << what;
  EXPECT_EQ(s.min_scale, e.min_scale) << what;
  EXPECT_EQ(s.max_scale, e.max_scale) << what;
  EXPECT_NEAR(s.signal, e.signal, 1e-5 * e.signal) << what;
  EXPECT_NEAR(s.error, e.error, 1e-5 * e.error) << what;
}

}  // namespace dovetail::mx
