#include <algorithm>
#include <array>
#include <cmath>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/mx/quantize_simd.h"

namespace dovetail::mx {

namespace {

/// Stores a code under a scale byte to the target: the code itself, or its dequantized number.
void put(const QuantizeProblem& p, const QuantizeTarget& target, int64_t index, uint8_t code,
         int byte) {
  if (!target.values) {
    target.codes[index] = code;
  } else if (p.source == Source::kFloat32) {
    static_cast<uint32_t*>(target.values)[index] = decode(code, byte, p.spec);
  } else {
    static_cast<uint16_t*>(target.values)[index] = round_to_bfloat16(decode(code, byte, p.spec));
  }
}

/// Returns the number as double, computed with integers. So a processor that flushes subnormal
/// float32 to zero does not change it.
double value_of(uint32_t float_bits) {
  const Magnitude x = normalize(float_bits & bits::kMagnitude);
  const double magnitude =
      std::ldexp(static_cast<double>(x.significand), x.exponent - bits::kFractionBits);
  return float_bits & bits::kSign ? -magnitude : magnitude;
}

/// Random words by element index. One Philox call serves four consecutive elements, so indices
/// should ascend.
class RandomWords {
 public:
  explicit RandomWords(uint64_t seed) : seed_(seed) {}
  uint32_t at(uint64_t index) {
    if (index / 4 != call_) {
      call_ = index / 4;
      words_ = philox(seed_, call_, static_cast<uint64_t>(RandomStream::kQuantize));
    }
    return words_[index % 4];
  }

 private:
  uint64_t seed_, call_ = ~uint64_t{0};
  std::array<uint32_t, 4> words_ = {};
};

struct BlockMaximum {
  uint32_t finite = 0;
  bool non_finite = false;
};

BlockMaximum block_maximum(const QuantizeProblem& p, PieceRange block) {
  BlockMaximum found;
  for_each_element(p.cols, block, [&](int64_t index, int64_t) {
    const uint32_t magnitude =
        load_bits(p.source, p.x, index - p.first_row * p.cols) & bits::kMagnitude;
    if (magnitude >= bits::kInfinity) {
      found.non_finite = true;
    } else {
      found.finite = std::max(found.finite, magnitude);
    }
  });
  return found;
}

}  // namespace

void QuantizeCounts::add(const QuantizeCounts& other) {
  row.add(other.row);
  column.add(other.column);
  square.add(other.square);
}

void quantize_exactly(const QuantizeProblem& p, PieceRange block, const QuantizeTarget& target,
                      uint8_t* scale, Statistics& statistics) {
  const BlockMaximum amax = block_maximum(p, block);
  statistics.elements += block.rows * block.cols;
  ++statistics.blocks;
  statistics.non_finite_blocks += amax.non_finite;
  if (amax.non_finite && !p.saturate_non_finite) {
    *scale = kScaleNan;
    for_each_element(p.cols, block,
                     [&](int64_t index, int64_t) { put(p, target, index, 0, kScaleNan); });
    return;
  }
  const int byte = scale_byte(amax.finite, p.spec, p.addend);
  *scale = static_cast<uint8_t>(byte);
  statistics.zero_blocks += amax.finite == 0;
  statistics.amax_bits = std::max(statistics.amax_bits, amax.finite);
  if (amax.finite != 0) {
    statistics.min_scale = std::min(statistics.min_scale, byte);
    statistics.max_scale = std::max(statistics.max_scale, byte);
    statistics.floor_saturated_blocks +=
        saturates(amax.finite, scale_byte(amax.finite, p.spec, 0), p.spec);
  }
  const int exponent = byte - kScaleBias;
  RandomWords random(p.seed);
  int64_t saturations = 0;
  for_each_element(p.cols, block, [&](int64_t index, int64_t) {
    const uint32_t x = load_bits(p.source, p.x, index - p.first_row * p.cols),
                   magnitude = x & bits::kMagnitude;
    const ElementRounding rounding{p.stochastic,
                                   p.stochastic ? random.at(static_cast<uint64_t>(index)) : 0};
    const uint8_t code = encode(x, byte, p.spec, rounding);
    put(p, target, index, code, byte);
    if (magnitude >= bits::kInfinity) {
      ++saturations;
      return;
    }
    const uint32_t kept = decode(code, kScaleBias, p.spec);
    const double value = value_of(x), difference = value - std::ldexp(value_of(kept), exponent);
    statistics.underflows += magnitude != 0 && (kept & bits::kMagnitude) == 0;
    saturations += saturates(magnitude, byte, p.spec);
    statistics.signal += value * value;
    statistics.error += difference * difference;
  });
  statistics.saturations += saturations;
  statistics.saturating_blocks += saturations != 0;
}

void quantize_piece_exactly(const QuantizeProblem& p, PieceRange piece, QuantizeCounts& counts) {
  const auto every_block = [&](const QuantizeTarget& target, int64_t rows, int64_t cols,
                               Statistics& statistics) {
    if (!target.wanted()) return;
    const int64_t scale_cols = (p.cols + cols - 1) / cols;
    for (int64_t row = piece.row; row < piece.row + piece.rows; row += rows) {
      for (int64_t col = piece.col; col < piece.col + piece.cols; col += cols) {
        const PieceRange block{row, std::min(rows, p.rows - row), col,
                               std::min(cols, p.cols - col)};
        quantize_exactly(p, block, target, target.scales + row / rows * scale_cols + col / cols,
                         statistics);
      }
    }
  };
  every_block(p.row, 1, kBlock, counts.row);
  every_block(p.column, kBlock, 1, counts.column);
  every_block(p.square, kBlock, kBlock, counts.square);
}

}  // namespace dovetail::mx
