#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/mx/dequantize_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "dovetail/base/threads.h"
#include "dovetail/mx/quantize_inl.h"
#include "dovetail/mx/quantize_simd.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {

HWY_INLINE void store_exactly(uint32_t float_bits, float* to) {
  *to = std::bit_cast<float>(float_bits);
}
HWY_INLINE void store_exactly(uint32_t float_bits, uint16_t* to) {
  *to = round_to_bfloat16(float_bits);
}

/// Returns the index of the scale of element (row, col).
HWY_INLINE int64_t scale_at(const DequantizeProblem& p, int64_t row, int64_t col) {
  const int64_t scale_cols = (p.cols + p.col_block - 1) / p.col_block;
  return row / p.row_block * scale_cols + col / p.col_block;
}

template <class T>
void decode_exactly(const DequantizeProblem& p, int64_t row, int64_t begin, int64_t end, T* y) {
  for (int64_t i = begin; i < end; ++i) {
    const uint8_t code = p.codes[row * p.cols + i];
    const int64_t scale = scale_at(p, row, i);
    const uint32_t number =
        p.float_scales
            ? std::bit_cast<uint32_t>(std::bit_cast<float>(decode(code, kScaleBias, p.spec)) *
                                      p.float_scales[scale])
            : decode(code, p.scales[scale], p.spec);
    store_exactly(number, y + row * p.cols + i);
  }
}

#if HWY_TARGET == HWY_SCALAR
template <class T, bool kTwosComplement>
void dequantize_row(const DequantizeProblem& p, int64_t row, T* y) {
  decode_exactly(p, row, 0, p.cols, y);
}
#else

// Under a smaller scale, the smallest code may be subnormal. The processor may flush it to zero.
constexpr uint32_t kSmallestNormalScale = 24;

/// Returns the scale 2^(scale - 127) for its byte. Byte 255 gives NaN.
HWY_INLINE FloatVector factor_of(BitsVector scale) {
  return as_float(hn::IfThenElse(hn::Eq(scale, splat(kScaleNan)), splat(bits::kQuietNan),
                                 hn::ShiftLeft<bits::kFractionBits>(scale)));
}

/// Decodes codes in the low bytes, times their scales.
template <bool kTwosComplement>
HWY_INLINE BitsVector decode_lanes(const ElementSpec& spec, BitsVector codes, FloatVector factor) {
  const BitsTag d;
  const hn::RebindToSigned<BitsTag> di;
  if constexpr (kTwosComplement) {
    const auto units = hn::ShiftRight<24>(hn::BitCast(di, hn::ShiftLeft<24>(codes)));
    return as_bits(
        hn::Mul(hn::Mul(hn::ConvertTo(FloatTag(), units), hn::Set(FloatTag(), 0x1p-6f)), factor));
  }
  const auto base = static_cast<uint32_t>(spec.min_exponent - 1 + bits::kExponentBias)
                    << bits::kFractionBits;
  const uint32_t top = 1u << (spec.bits - 1), one = 1u << bits::kFractionBits;
  const BitsVector magnitude = hn::And(codes, splat(top - 1));
  const BitsVector fraction =
      hn::Shl(magnitude, splat(static_cast<uint32_t>(bits::kFractionBits - spec.mantissa_bits)));
  const BitsVector normal = hn::Add(fraction, splat(base));
  // Treats E = 0 as E = 1 and subtracts the implicit one. This is exact, and no number here is
  // subnormal.
  const auto small = hn::Lt(magnitude, splat(1u << spec.mantissa_bits));
  const FloatVector subnormal =
      hn::Sub(as_float(hn::Add(normal, splat(one))), as_float(splat(base + one)));
  const auto beyond = hn::Gt(magnitude, splat(spec.max_code));
  const BitsVector finite = hn::IfThenElse(small, as_bits(subnormal), normal);
  const BitsVector value = hn::IfThenElse(beyond, hn::Or(normal, splat(bits::kInfinity)), finite);
  const BitsVector sign =
      hn::IfThenElseZero(hn::Ne(hn::And(codes, splat(top)), hn::Zero(d)), splat(bits::kSign));
  return as_bits(hn::Mul(as_float(hn::Or(value, sign)), factor));
}

/// Rounds float32 bits to bfloat16 bits in the high half of each lane, ties to even.
HWY_INLINE BitsVector rounded(BitsVector v, const float*) { return v; }
HWY_INLINE BitsVector rounded(BitsVector v, const uint16_t*) {
  const BitsVector odd = hn::And(hn::ShiftRight<16>(v), splat(1));
  return hn::Add(v, hn::Add(odd, splat(0x7fff)));  // no NaN of decode_lanes has low bits
}

HWY_INLINE void store_bits(BitsVector v, float* to) { hn::StoreU(as_float(v), FloatTag(), to); }
/// Exact, since no bits are lost. NaN and infinity are kept.
HWY_INLINE void store_bits(BitsVector v, uint16_t* to) {
  const auto high = hn::BitCast(hn::RebindToSigned<BitsTag>(), hn::ShiftRight<16>(v));
  hn::StoreU(hn::DemoteTo(HalfTag(), high), HalfTag(), to);
}

/// Dequantizes a row whose scales are float32.
template <class T>
void dequantize_float8_row(const DequantizeProblem& p, int64_t row, T* y) {
  const FloatTag d;
  const hn::Rebind<uint8_t, BitsTag> d8;
  const uint8_t* codes = p.codes + row * p.cols;
  const ElementSpec spec = p.spec;
  int64_t begin = 0;
  while (begin + kLanes <= p.cols) {
    const float* scales = p.float_scales + scale_at(p, row, begin);
    const int64_t end = p.col_block == 1 ? p.cols : std::min(p.cols, begin + p.col_block);
    const FloatVector same = hn::Set(d, *scales);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const FloatVector factor = p.col_block == 1 ? hn::LoadU(d, scales + i - begin) : same;
      const BitsVector lanes = hn::PromoteTo(BitsTag(), hn::LoadU(d8, codes + i));
      store_bits(rounded(decode_lanes<false>(spec, lanes, factor), y), y + row * p.cols + i);
    }
    begin = i;
    if (end == p.cols) break;
  }
  decode_exactly(p, row, begin, p.cols, y);
}

template <class T, bool kTwosComplement>
void dequantize_row(const DequantizeProblem& p, int64_t row, T* y) {
  if (p.float_scales) return dequantize_float8_row(p, row, y);
  const BitsTag d;
  const hn::Rebind<uint8_t, BitsTag> d8;
  const uint8_t* codes = p.codes + row * p.cols;
  int64_t i = 0;
  for (; i + kLanes <= p.cols; i += kLanes) {
    const uint8_t* scales = p.scales + scale_at(p, row, i);
    const BitsVector scale =
        p.col_block == 1 ? hn::PromoteTo(d, hn::LoadU(d8, scales)) : splat(*scales);
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Gt(scale, splat(kSmallestNormalScale - 1))))) {
      decode_exactly(p, row, i, i + kLanes, y);
    } else {
      const BitsVector lanes = hn::PromoteTo(d, hn::LoadU(d8, codes + i));
      store_bits(decode_lanes<kTwosComplement>(p.spec, lanes, factor_of(scale)),
                 y + row * p.cols + i);
    }
  }
  decode_exactly(p, row, i, p.cols, y);
}

#endif  // HWY_SCALAR

template <class T>
void dequantize_rows(const DequantizeProblem& p, int64_t begin, int64_t end, T* y) {
  for (int64_t row = begin; row < end; ++row) {
    if (p.spec.twos_complement) {
      dequantize_row<T, true>(p, row, y);
    } else {
      dequantize_row<T, false>(p, row, y);
    }
  }
}

void DequantizeToFloat32(const DequantizeProblem& p, int64_t begin, int64_t end, float* y) {
  dequantize_rows(p, begin, end, y);
}

void DequantizeToBFloat16(const DequantizeProblem& p, int64_t begin, int64_t end, uint16_t* y) {
  dequantize_rows(p, begin, end, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::mx {

HWY_EXPORT(DequantizeToFloat32);
HWY_EXPORT(DequantizeToBFloat16);

namespace {

int64_t grain_of(const DequantizeProblem& p) {
  return std::max<int64_t>(1, 65536 / std::max<int64_t>(1, p.cols));
}

}  // namespace

void dequantize_blocks(const DequantizeProblem& p, float* y) {
  parallel_pieces(p.rows, grain_of(p), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DequantizeToFloat32)(p, begin, end, y);
  });
}

void dequantize_blocks(const DequantizeProblem& p, uint16_t* y) {
  parallel_pieces(p.rows, grain_of(p), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DequantizeToBFloat16)(p, begin, end, y);
  });
}

}  // namespace dovetail::mx
#endif
