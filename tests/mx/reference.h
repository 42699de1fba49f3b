#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "dovetail/base/rng.h"
#include "dovetail/mx/format.h"
#include "dovetail/mx/statistics.h"

/// Reference of the formats by their definitions, with tables and doubles. Doubles hold every
/// number here exactly. It uses none of the codec's bit arithmetic, is slow and serial, and shares
/// no code with the tested codec.
namespace dovetail::mx::reference {

inline bool finite(uint32_t float_bits) { return (float_bits & 0x7f800000) != 0x7f800000; }

/// Converts the number to double directly. A conversion through float would flush subnormal numbers
/// if the processor is set to do so.
inline double value(uint32_t float_bits) {
  const int field = static_cast<int>(float_bits >> 23 & 255);
  const double fraction = static_cast<double>(float_bits & 0x7fffff);
  const double magnitude =
      field == 0 ? std::ldexp(fraction, -149) : std::ldexp(fraction + 0x1p23, field - 150);
  return float_bits >> 31 ? -magnitude : magnitude;
}

struct Definition {
  int exponent_bits, mantissa_bits, bias;
  size_t numbers;  ///< count of magnitude codes that are numbers
};
inline Definition definition(Format format) {
  switch (format) {
    case Format::kE4M3:
      return {4, 3, 7, 127};
    case Format::kE5M2:
      return {5, 2, 15, 124};
    case Format::kE3M2:
      return {3, 2, 3, 32};
    case Format::kE2M3:
      return {2, 3, 1, 32};
    case Format::kE2M1:
      return {2, 1, 1, 8};
    case Format::kInt8:
      return {0, 7, 0, 128};
  }
  return {};
}
inline int mantissa_bits(Format format) {
  return format == Format::kInt8 ? 6 : definition(format).mantissa_bits;
}

inline std::vector<double> make_numbers(Format format) {
  const Definition d = definition(format);
  std::vector<double> table;
  for (size_t code = 0; code < d.numbers; ++code) {
    const int field = static_cast<int>(code >> d.mantissa_bits);
    const double low = static_cast<double>(code % (size_t{1} << d.mantissa_bits));
    if (format == Format::kInt8) {
      table.push_back(static_cast<double>(code) / 64);
    } else if (field == 0) {
      table.push_back(std::ldexp(low, 1 - d.bias - d.mantissa_bits));
    } else {
      table.push_back(std::ldexp(1 + std::ldexp(low, -d.mantissa_bits), field - d.bias));
    }
  }
  return table;
}

/// Returns the number of each magnitude code.
inline const std::vector<double>& numbers(Format format) {
  static const std::array<std::vector<double>, 6> tables = [] {
    std::array<std::vector<double>, 6> made;
    for (size_t i = 0; i < made.size(); ++i) made[i] = make_numbers(static_cast<Format>(i));
    return made;
  }();
  return tables[static_cast<size_t>(format)];
}

inline int scale(double amax, Format format, ScaleMode mode) {
  if (amax == 0) return 0;
  const double largest = numbers(format).back();
  if (mode == ScaleMode::kRoundUp) {
    int byte = 0;
    while (byte < 254 && amax > std::ldexp(largest, byte - 127)) ++byte;
    return byte;
  }
  int exponent = std::ilogb(amax);
  if (mode == ScaleMode::kCeil && std::ldexp(1.0, exponent) < amax) ++exponent;
  if (mode == ScaleMode::kEven) {
    const double unit = std::ldexp(1.0, exponent - mantissa_bits(format));
    exponent = std::ilogb(std::floor(amax / unit + 0.5) * unit);
  }
  return std::clamp(exponent - std::ilogb(largest) + 127, 0, 254);
}

/// Rounds to a code. `random`: bits for stochastic rounding; negative: to nearest, ties to the even
/// code.
inline uint8_t code(uint32_t x, int scale, Format format, int64_t random = -1) {
  const auto& table = numbers(format);
  const double t = finite(x) ? std::ldexp(std::abs(value(x)), 127 - scale) : INFINITY;
  size_t low = table.size() - 1;
  while (low > 0 && table[low] > t) --low;
  size_t code = low;
  if (low + 1 < table.size()) {
    const double share = (t - table[low]) / (table[low + 1] - table[low]);
    const bool up = random < 0 ? share > 0.5 || (share == 0.5 && low % 2 == 1)
                               : std::floor(share * 0x1p32) + static_cast<double>(random) >= 0x1p32;
    if (up) ++code;
  }
  if (!(x >> 31)) return static_cast<uint8_t>(code);
  if (format == Format::kInt8) return static_cast<uint8_t>(256 - code);
  const Definition d = definition(format);
  return static_cast<uint8_t>(code | size_t{1} << (d.exponent_bits + d.mantissa_bits));
}

/// Decodes a code that `code` returns, under scale byte 127.
inline double decoded(uint8_t code, Format format) {
  const auto& table = numbers(format);
  if (format == Format::kInt8) return static_cast<double>(static_cast<int8_t>(code)) / 64;
  const Definition d = definition(format);
  const size_t top = size_t{1} << (d.exponent_bits + d.mantissa_bits);
  return code & top ? -table.at(code % top) : table.at(code);
}

struct Options {
  Format format = Format::kE4M3;
  ScaleMode mode = ScaleMode::kRoundUp;
  NonFinite non_finite = NonFinite::kPoison;
  bool stochastic = false;
  uint64_t seed = 0;
};

/// Result of quantizing x (rows, cols) in blocks of block_rows x block_cols.
struct Result {
  std::vector<uint8_t> codes, scales;
  Statistics statistics;
};

struct Area {
  size_t row, rows, col, cols;
};

inline void quantize_block(const std::vector<uint32_t>& x, size_t cols, Area area, const Options& o,
                           Result& out) {
  Statistics& s = out.statistics;
  std::vector<size_t> indices;
  for (size_t i = area.row; i < area.row + area.rows; ++i)
    for (size_t j = area.col; j < area.col + area.cols; ++j) indices.push_back(i * cols + j);
  uint32_t amax_bits = 0;
  bool all_finite = true;
  for (const size_t i : indices) {
    all_finite = all_finite && finite(x[i]);
    if (finite(x[i]) && std::abs(value(x[i])) > value(amax_bits)) amax_bits = x[i] & 0x7fffffff;
  }
  const double amax = value(amax_bits);
  s.elements += static_cast<int64_t>(indices.size());
  ++s.blocks;
  s.non_finite_blocks += !all_finite;
  if (!all_finite && o.non_finite == NonFinite::kPoison) return out.scales.push_back(255);
  s.amax_bits = std::max(s.amax_bits, amax_bits);
  const int byte = scale(amax, o.format, o.mode);
  out.scales.push_back(static_cast<uint8_t>(byte));
  s.zero_blocks += amax == 0;
  if (amax != 0) {
    s.min_scale = std::min(s.min_scale, byte);
    s.max_scale = std::max(s.max_scale, byte);
  }
  const double largest = numbers(o.format).back();
  s.floor_saturated_blocks +=
      amax > std::ldexp(largest, scale(amax, o.format, ScaleMode::kFloor) - 127);
  bool saturated = false;
  for (const size_t i : indices) {
    int64_t random = -1;
    if (o.stochastic)
      random = philox(o.seed, i / 4, static_cast<uint64_t>(RandomStream::kQuantize))[i % 4];
    out.codes[i] = code(x[i], byte, o.format, random);
    const double v = value(x[i]), kept = std::ldexp(decoded(out.codes[i], o.format), byte - 127);
    const bool beyond = !finite(x[i]) || std::abs(v) > std::ldexp(largest, byte - 127);
    s.saturations += beyond;
    saturated = saturated || beyond;
    if (!finite(x[i])) continue;
    s.underflows += v != 0 && kept == 0;
    s.signal += v * v;
    s.error += (v - kept) * (v - kept);
  }
  s.saturating_blocks += saturated;
}

inline Result quantize(const std::vector<uint32_t>& x, size_t rows, size_t cols, size_t block_rows,
                       size_t block_cols, const Options& options) {
  Result out;
  out.codes.assign(x.size(), 0);
  for (size_t i = 0; i < rows; i += block_rows) {
    for (size_t j = 0; j < cols; j += block_cols)
      quantize_block(x, cols,
                     {i, std::min(block_rows, rows - i), j, std::min(block_cols, cols - j)},
                     options, out);
  }
  return out;
}

}  // namespace dovetail::mx::reference
