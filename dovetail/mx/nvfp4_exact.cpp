#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "dovetail/base/philox.h"
#include "dovetail/base/rng.h"
#include "dovetail/mx/format.h"
#include "dovetail/mx/nvfp4_simd.h"

namespace dovetail::mx {

void raise_nvfp4_maxima(const Nvfp4Problem& p, PieceRange piece, bool finite_only, uint32_t* most) {
  for_each_element(p.cols, piece, [&](int64_t index, int64_t column) {
    const uint32_t magnitude = load_bits(p.source, p.x, index) & bits::kMagnitude;
    if (finite_only && magnitude >= bits::kInfinity) return;
    most[column] = std::max(most[column], magnitude);
  });
}

void choose_nvfp4_scales(const Nvfp4Problem& p, Nvfp4Scales& s, int64_t blocks, uint8_t* bytes,
                         Statistics& statistics) {
  const ElementSpec &e4m3 = element_spec(Format::kE4M3), &e2m1 = element_spec(Format::kE2M1);
  const float largest = std::bit_cast<float>(largest_bits(e2m1)),
              most_scale = std::bit_cast<float>(largest_bits(e4m3)), least_scale = 0x1p-6F;
  statistics.blocks += blocks;
  for (int64_t i = 0; i < blocks; ++i) {
    const uint32_t most = s.most[i];
    if (most >= bits::kInfinity) {
      ++statistics.non_finite_blocks;
      bytes[i] = 0x7f;
      s.factor[i] = 0;
      s.scale[i] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const float amax = std::bit_cast<float>(most);
    const float wanted = std::clamp(amax / largest / p.tensor_scale, least_scale, most_scale);
    bytes[i] = encode(std::bit_cast<uint32_t>(wanted), kScaleBias, e4m3);
    s.scale[i] = std::bit_cast<float>(decode(bytes[i], kScaleBias, e4m3));
    s.factor[i] = 1 / p.tensor_scale / s.scale[i];
    statistics.amax_bits = std::max(statistics.amax_bits, most);
    statistics.saturating_blocks += amax * s.factor[i] > largest;
    statistics.floor_saturated_blocks += (most & bits::kFraction) > e2m1.max_fraction;
    statistics.zero_blocks += most == 0;
    if (most == 0) continue;
    const auto byte = static_cast<int>(std::bit_cast<uint32_t>(s.scale[i] * p.tensor_scale) >>
                                       bits::kFractionBits);
    statistics.min_scale = std::min(statistics.min_scale, byte);
    statistics.max_scale = std::max(statistics.max_scale, byte);
  }
}

void encode_nvfp4_piece(const Nvfp4Problem& p, PieceRange piece, const Nvfp4Scales& columns,
                        Statistics& statistics) {
  constexpr int kOne = kScaleBias;
  const ElementSpec& spec = element_spec(Format::kE2M1);
  const float largest = std::bit_cast<float>(largest_bits(spec));
  for_each_element(p.cols, piece, [&](int64_t index, int64_t column) {
    const float factor = columns.factor[column], scale = columns.scale[column];
    uint32_t x = factor == 0 ? 0 : load_bits(p.source, p.x, index);
    const bool subnormal = (x & bits::kMagnitude) < 1u << bits::kFractionBits;
    if (p.stochastic && subnormal) x &= bits::kSign;
    const bool finite = (x & bits::kMagnitude) < bits::kInfinity;
    const float scaled = std::bit_cast<float>(x & bits::kMagnitude) * factor;
    ElementRounding rounding;
    if (p.stochastic) {
      const auto i = static_cast<uint64_t>(index);
      rounding = {
          .stochastic = true,
          .random = philox_words(p.seed, i / 4, static_cast<uint64_t>(RandomStream::kQuantize))
                        .word[i % 4]};
    }
    const uint32_t code = encode_magnitude(std::bit_cast<uint32_t>(scaled), kOne, spec, rounding);
    const uint8_t with_sign = signed_code(code, (x & bits::kSign) != 0, spec);
    const float element = std::bit_cast<float>(decode(with_sign, kOne, spec));
    const uint32_t value = std::bit_cast<uint32_t>(element * scale);
    if (p.codes) {
      p.codes[index] = with_sign;
    } else if (p.source == Source::kBFloat16) {
      static_cast<uint16_t*>(p.values)[index] = round_to_bfloat16(value);
    } else {
      static_cast<uint32_t*>(p.values)[index] = value;
    }
    if (factor == 0 || !finite) return;
    const double unit = static_cast<double>(scale) * static_cast<double>(p.tensor_scale),
                 error = static_cast<double>(scaled) - static_cast<double>(std::abs(element));
    statistics.signal += std::pow(static_cast<double>(scaled) * unit, 2);
    statistics.error += std::pow(error * unit, 2);
    if (code == 0 && (x & bits::kMagnitude) != 0) ++statistics.underflows;
    if (scaled > largest) ++statistics.saturations;
  });
}

void transform_hadamard(const HadamardRows& p, int64_t begin, int64_t end) {
  for (int64_t col = begin; col < end; ++col) {
    std::array<float, kNvfp4Block> v = {};
    for (int64_t row = 0; row < p.rows; ++row) {
      const float x = std::bit_cast<float>(load_bits(p.source, p.x, row * p.cols + col));
      v[static_cast<size_t>(row)] = (p.signs >> row & 1) != 0 ? -x : x;
    }
    for (size_t step = 1; step < v.size(); step *= 2) {
      for (size_t i = 0; i < v.size(); ++i) {
        if ((i & step) != 0) continue;
        const float a = v[i], b = v[i + step];
        v[i] = a + b;
        v[i + step] = a - b;
      }
    }
    for (int64_t row = 0; row < kNvfp4Block; ++row)
      p.to[row * p.cols + col] = v[static_cast<size_t>(row)] * 0.25F;
  }
}

}  // namespace dovetail::mx
