#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "dovetail/mx/float8_simd.h"

namespace dovetail::mx {

namespace {

void put_value(const Float8Problem& p, const Float8Target& target, int64_t index, float value) {
  if (target.wide_values || p.source == Source::kFloat32) {
    static_cast<float*>(target.values)[index] = value;
  } else {
    static_cast<uint16_t*>(target.values)[index] =
        round_to_bfloat16(std::bit_cast<uint32_t>(value));
  }
}

/// Quantizes the blocks of height x width that a piece consists of.
void quantize_each(const Float8Problem& p, PieceRange piece, const Float8Target& target,
                   int64_t height, int64_t width, Statistics* statistics) {
  const int64_t across = (p.cols + width - 1) / width;
  const int64_t row_end = piece.row + piece.rows, col_end = piece.col + piece.cols;
  for (int64_t row = piece.row; row < row_end; row += height) {
    for (int64_t col = piece.col; col < col_end; col += width) {
      const PieceRange block{row, std::min(height, row_end - row), col,
                             std::min(width, col_end - col)};
      const Float8Scale scale = choose_float8_scale(p, float8_maximum(p, block), statistics);
      target.scales[row / height * across + col / width] = scale.scale;
      encode_float8_exactly(p, block, target, scale, statistics);
    }
  }
}

}  // namespace

Float8Scale choose_float8_scale(const Float8Problem& p, uint32_t most, Statistics* statistics) {
  constexpr float kSmallestAmax = 0x1p-80F;
  if (statistics) ++statistics->blocks;
  if (most >= bits::kInfinity) {
    if (statistics) ++statistics->non_finite_blocks;
    return {0, std::numeric_limits<float>::quiet_NaN()};
  }
  const float amax = p.amax > 0 ? p.amax : std::bit_cast<float>(most);
  float factor = std::bit_cast<float>(largest_bits(p.spec)) / std::max(amax, kSmallestAmax);
  if (p.power_of_two)
    factor = std::bit_cast<float>(std::bit_cast<uint32_t>(factor) & bits::kInfinity);
  const float scale = 1 / factor;
  if (!statistics) return {factor, scale};
  statistics->amax_bits = std::max(statistics->amax_bits, most);
  if (p.amax > 0 && most > std::bit_cast<uint32_t>(p.amax)) ++statistics->saturating_blocks;
  if ((most & bits::kFraction) > p.spec.max_fraction) ++statistics->floor_saturated_blocks;
  if (most == 0) {
    ++statistics->zero_blocks;
  } else {
    const int byte = static_cast<int>(std::bit_cast<uint32_t>(scale) >> bits::kFractionBits);
    statistics->min_scale = std::min(statistics->min_scale, byte);
    statistics->max_scale = std::max(statistics->max_scale, byte);
  }
  return {factor, scale};
}

uint32_t float8_maximum(const Float8Problem& p, PieceRange block) {
  uint32_t most = 0;
  for_each_element(p.cols, block, [&](int64_t index, int64_t) {
    most = std::max(most, load_bits(p.source, p.x, index) & bits::kMagnitude);
  });
  return most;
}

void encode_float8_exactly(const Float8Problem& p, PieceRange block, const Float8Target& target,
                           Float8Scale scale, Statistics* statistics) {
  constexpr int kOne = kScaleBias;
  const double unit = static_cast<double>(scale.scale);
  if (statistics) statistics->elements += block.rows * block.cols;
  for_each_element(p.cols, block, [&](int64_t index, int64_t) {
    const uint32_t x = scale.factor == 0 ? 0 : load_bits(p.source, p.x, index);
    const float scaled = std::bit_cast<float>(x) * scale.factor;
    const uint8_t code = encode(std::bit_cast<uint32_t>(scaled) | (x & bits::kSign), kOne, p.spec);
    const float element = std::bit_cast<float>(decode(code, kOne, p.spec));
    if (target.codes) target.codes[index] = code;
    if (target.values)
      put_value(p, target, index, target.unscaled ? element : element * scale.scale);
    if (!statistics || scale.factor == 0) return;
    const double error = static_cast<double>(scaled) - static_cast<double>(element);
    statistics->signal += std::pow(static_cast<double>(scaled) * unit, 2);
    statistics->error += std::pow(error * unit, 2);
    if (element == 0 && (x & bits::kMagnitude) != 0) ++statistics->underflows;
    if (p.amax > 0 && (x & bits::kMagnitude) > std::bit_cast<uint32_t>(p.amax))
      ++statistics->saturations;
  });
}

void quantize_float8_exactly(const Float8Problem& p, PieceRange piece, Statistics& statistics) {
  if (p.row.wanted()) quantize_each(p, piece, p.row, 1, kFloat8Block, &statistics);
  if (p.column.wanted())
    quantize_each(p, piece, p.column, kFloat8Block, 1, p.row.wanted() ? nullptr : &statistics);
  if (p.square.wanted()) quantize_each(p, piece, p.square, kFloat8Block, kFloat8Block, &statistics);
}

}  // namespace dovetail::mx
