#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/mx/nvfp4_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dovetail/base/rng.h"
#include "dovetail/mx/format.h"
#include "dovetail/mx/nvfp4_simd.h"
#include "dovetail/mx/quantize_inl.h"
#include "dovetail/mx/random_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
void RaiseNvfp4Maxima(const Nvfp4Problem& p, PieceRange piece, bool finite_only, uint32_t* most) {
  raise_nvfp4_maxima(p, piece, finite_only, most);
}
void ChooseNvfp4Scales(const Nvfp4Problem& p, Nvfp4Scales& s, int64_t blocks, uint8_t* bytes,
                       Statistics& statistics) {
  choose_nvfp4_scales(p, s, blocks, bytes, statistics);
}
void EncodeNvfp4Piece(const Nvfp4Problem& p, PieceRange piece, const Nvfp4Scales& columns,
                      Statistics& statistics) {
  encode_nvfp4_piece(p, piece, columns, statistics);
}
void TransformHadamard(const HadamardRows& p, int64_t begin, int64_t end) {
  transform_hadamard(p, begin, end);
}
#else

HWY_INLINE BitsVector finite_or_zero(BitsVector magnitude) {
  const hn::RebindToSigned<BitsTag>
      di;  // magnitudes are positive, and signed comparison is cheaper
  const auto infinite =
      hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(bits::kInfinity - 1)));
  return hn::IfThenZeroElse(hn::RebindMask(BitsTag(), infinite), magnitude);
}

/// Loads up to kLanes elements as float32 bits, with zeros after them.
template <class T>
HWY_INLINE BitsVector load_some(const T* x, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return load_bits(x);
  HWY_ALIGN T padded[kLanes] = {};
  std::memcpy(padded, x, static_cast<size_t>(count) * sizeof(T));
  return load_bits(padded);
}

template <class T, bool kFiniteOnly>
void raise_maxima(const Nvfp4Problem& p, PieceRange piece, uint32_t* most) {
  const BitsTag d;
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.cols + piece.col;
    for (int64_t i = 0; i < piece.cols; i += kLanes) {
      BitsVector magnitude = hn::And(load_some(x + i, piece.cols - i), splat(bits::kMagnitude));
      if constexpr (kFiniteOnly) magnitude = finite_or_zero(magnitude);
      hn::Store(hn::Max(hn::Load(d, most + i), magnitude), d, most + i);
    }
  }
}

void RaiseNvfp4Maxima(const Nvfp4Problem& p, PieceRange piece, bool finite_only, uint32_t* most) {
  if (p.source == Source::kFloat32)
    return finite_only ? raise_maxima<float, true>(p, piece, most)
                       : raise_maxima<float, false>(p, piece, most);
  return finite_only ? raise_maxima<BFloat16, true>(p, piece, most)
                     : raise_maxima<BFloat16, false>(p, piece, most);
}

void ChooseNvfp4Scales(const Nvfp4Problem& p, Nvfp4Scales& s, int64_t blocks, uint8_t* bytes,
                       Statistics& statistics) {
  const FloatTag d;
  const BitsTag db;
  const ElementSpec &e4m3 = element_spec(Format::kE4M3), &e2m1 = element_spec(Format::kE2M1);
  const Encoder f(e4m3);
  const Constants constants = constants_of(f);
  const FloatVector one = hn::Set(d, 1.0F), tensor_scale = hn::Set(d, p.tensor_scale),
                    inverse = hn::Div(one, tensor_scale),
                    largest = as_float(splat(largest_bits(e2m1))),
                    most_scale = as_float(splat(largest_bits(e4m3))),
                    least_scale = hn::Set(d, 0x1p-6F);
  BitsVector most = splat(0), least_byte = splat(255), most_byte = splat(0), non_finite = splat(0),
             zero = splat(0), saturating = splat(0), floor = splat(0);
  const auto count = [](BitsVector& sum, hn::Mask<BitsTag> mask) {
    sum = hn::Sub(sum, hn::VecFromMask(BitsTag(), mask));
  };
  std::fill_n(s.most + blocks, kLanes, 0);
  for (int64_t i = 0; i < blocks; i += kLanes) {
    const BitsVector amax = hn::Load(db, s.most + i), finite = finite_or_zero(amax);
    const auto poisoned = hn::Ne(amax, finite);
    const FloatVector block_scale = hn::Div(hn::Div(as_float(finite), largest), tensor_scale);
    const BitsVector wanted = as_bits(hn::Min(hn::Max(block_scale, least_scale), most_scale));
    Energies unused = {hn::Zero(d), hn::Zero(d)};
    const BitsVector code =
        encode<uint8_t, false, Path::kClamp>(constants, wanted, one, one, unused);
    const BitsVector scale =
        encode<float, false, Path::kClamp>(constants, wanted, one, one, unused);
    const FloatVector factor = hn::Div(inverse, as_float(scale));
    hn::Store(as_float(hn::IfThenElse(poisoned, splat(bits::kQuietNan), scale)), d, s.scale + i);
    hn::Store(as_float(hn::IfThenZeroElse(poisoned, as_bits(factor))), d, s.factor + i);
    HWY_ALIGN uint32_t codes[kLanes];
    hn::Store(hn::IfThenElse(poisoned, splat(0x7f), code), db, codes);
    for (int64_t j = 0; j < std::min(kLanes, blocks - i); ++j)
      bytes[i + j] = static_cast<uint8_t>(codes[j]);

    most = hn::Max(most, finite);
    count(non_finite, poisoned);
    const auto is_zero = hn::Eq(amax, splat(0));
    count(zero, is_zero);
    const auto over = hn::Gt(hn::Mul(as_float(finite), factor), largest);
    count(saturating, hn::RebindMask(db, over));
    count(floor, hn::Gt(hn::And(finite, splat(bits::kFraction)), splat(e2m1.max_fraction)));
    const BitsVector byte =
        hn::ShiftRight<bits::kFractionBits>(as_bits(hn::Mul(as_float(scale), tensor_scale)));
    const auto counted = hn::Ne(finite, splat(0));
    least_byte = hn::Min(least_byte, hn::IfThenElse(counted, byte, splat(255)));
    most_byte = hn::Max(most_byte, hn::IfThenElseZero(counted, byte));
  }
  const int64_t padding = (kLanes - blocks % kLanes) % kLanes;
  statistics.blocks += blocks;
  statistics.non_finite_blocks += sum_counts(non_finite);
  statistics.zero_blocks += sum_counts(zero) - padding;
  statistics.saturating_blocks += sum_counts(saturating);
  statistics.floor_saturated_blocks += sum_counts(floor);
  statistics.amax_bits = std::max(statistics.amax_bits, hn::GetLane(hn::MaxOfLanes(db, most)));
  statistics.min_scale =
      std::min(statistics.min_scale, static_cast<int>(hn::GetLane(hn::MinOfLanes(db, least_byte))));
  statistics.max_scale =
      std::max(statistics.max_scale, static_cast<int>(hn::GetLane(hn::MaxOfLanes(db, most_byte))));
}

/// Nvfp4Sums of a piece, lane by lane. Energies are in units of the tensor scale.
struct Nvfp4Sums {
  Energies energies;
  BitsVector underflows, saturations;
};

/// Encodes the kPacked elements at `x`.
template <class T, class Out, bool kStochastic>
HWY_INLINE void encode_pack(const Constants& constants, const T* x, const Nvfp4Scales& columns,
                            int64_t column, const uint32_t* words, bool saturate, Nvfp4Sums& sums,
                            BitsVector (&packed)[kPack]) {
  const FloatTag d;
  FloatVector factors[kPack], scales[kPack], random[kPack];
  load_pack(x, packed);
  load_for_pack<T>(columns.factor + column, factors);
  load_for_pack<T>(columns.scale + column, scales);
  if constexpr (kStochastic)
    load_for_pack<T>(reinterpret_cast<const float*>(words + column), random);
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; ++v) {
    const auto used = hn::Ne(factors[v], hn::Zero(d));
    BitsVector element = hn::IfThenElseZero(hn::RebindMask(BitsTag(), used), packed[v]);
    const BitsVector size = hn::And(element, splat(bits::kMagnitude));
    Energies energies = {hn::Zero(d), hn::Zero(d)};
    if constexpr (kStochastic) {
      const auto subnormal = hn::Lt(size, splat(1u << bits::kFractionBits));
      element = hn::IfThenElse(subnormal, hn::And(element, splat(bits::kSign)), element);
      packed[v] = encode_at_random<Out, false>(constants, element, as_bits(random[v]), factors[v],
                                               scales[v], energies, sums.underflows);
    } else {
      packed[v] =
          encode<Out, false, Path::kClamp>(constants, element, factors[v], scales[v], energies);
      const BitsVector kept =
          hn::And(packed[v], splat(std::is_same_v<Out, uint8_t> ? 7 : bits::kMagnitude));
      const auto vanished = hn::And(hn::Ne(size, splat(0)), hn::Eq(kept, splat(0)));
      sums.underflows = hn::Sub(sums.underflows, hn::VecFromMask(BitsTag(), vanished));
    }
    auto counts = used;
    if (saturate) {
      const auto finite = hn::Lt(size, splat(bits::kInfinity));
      counts = hn::And(counts, hn::RebindMask(d, finite));
    }
    const FloatVector unit = hn::IfThenElseZero(counts, scales[v]), weight = hn::Mul(unit, unit);
    if (saturate) {
      energies.signal = hn::IfThenElseZero(counts, energies.signal);
      energies.error = hn::IfThenElseZero(counts, energies.error);
    }
    sums.energies.signal = hn::MulAdd(energies.signal, weight, sums.energies.signal);
    sums.energies.error = hn::MulAdd(energies.error, weight, sums.energies.error);
    const auto over =
        hn::And(counts, hn::Gt(hn::Mul(as_float(size), factors[v]), as_float(constants.max_bits)));
    sums.saturations =
        hn::Sub(sums.saturations, hn::VecFromMask(BitsTag(), hn::RebindMask(BitsTag(), over)));
  }
}

template <class T, class Out, bool kStochastic>
void encode_piece(const Nvfp4Problem& p, PieceRange piece, const Nvfp4Scales& columns, Out* out,
                  Statistics& statistics) {
  constexpr int64_t kMargin = 16;  // before and after the words, for whole Philox calls
  const ElementSpec& spec = element_spec(Format::kE2M1);
  const Encoder f(spec);
  const Constants constants = constants_of(f);
  Sink<T, Out, false> sink(f, /*stream=*/false);
  HWY_ALIGN uint32_t memory[kStochastic ? kPieceColumns + kPacked + 4 * kMargin : 1];
  const FloatVector none = hn::Zero(FloatTag());
  Nvfp4Sums sums = {{none, none}, splat(0), splat(0)};
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    const int64_t at = row * p.cols + piece.col;
    const T* x = static_cast<const T*>(p.x) + at;
    if constexpr (kStochastic)
      fill_philox(p.seed, static_cast<uint64_t>(at / 4),
                  static_cast<uint64_t>(RandomStream::kQuantize), (at % 4 + piece.cols + 3) / 4,
                  memory + kMargin - at % 4);
    const uint32_t* words = kStochastic ? memory + kMargin : nullptr;
    BitsVector packed[kPack];
    int64_t i = 0;
    for (; i + kPacked <= piece.cols; i += kPacked) {
      encode_pack<T, Out, kStochastic>(constants, x + i, columns, i, words, p.saturate_non_finite,
                                       sums, packed);
      sink.put(packed, out + at + i);
    }
    if (i == piece.cols) continue;
    HWY_ALIGN T from[kPacked] = {};
    HWY_ALIGN Out to[kPacked];
    std::memcpy(from, x + i, static_cast<size_t>(piece.cols - i) * sizeof(T));
    encode_pack<T, Out, kStochastic>(constants, from, columns, i, words, p.saturate_non_finite,
                                     sums, packed);
    sink.put(packed, to);
    std::memcpy(out + at + i, to, static_cast<size_t>(piece.cols - i) * sizeof(Out));
  }
  const double unit = static_cast<double>(p.tensor_scale) * static_cast<double>(p.tensor_scale);
  statistics.signal += static_cast<double>(sum_lanes(sums.energies.signal)) * unit;
  statistics.error += static_cast<double>(sum_lanes(sums.energies.error)) * unit;
  statistics.underflows += sum_counts(sums.underflows);
  statistics.saturations += sum_counts(sums.saturations);
}

template <class T>
void encode_piece_of(const Nvfp4Problem& p, PieceRange piece, const Nvfp4Scales& columns,
                     Statistics& statistics) {
  if (p.codes)
    return p.stochastic ? encode_piece<T, uint8_t, true>(p, piece, columns, p.codes, statistics)
                        : encode_piece<T, uint8_t, false>(p, piece, columns, p.codes, statistics);
  T* values = static_cast<T*>(p.values);
  return p.stochastic ? encode_piece<T, T, true>(p, piece, columns, values, statistics)
                      : encode_piece<T, T, false>(p, piece, columns, values, statistics);
}

void EncodeNvfp4Piece(const Nvfp4Problem& p, PieceRange piece, const Nvfp4Scales& columns,
                      Statistics& statistics) {
  return p.source == Source::kFloat32 ? encode_piece_of<float>(p, piece, columns, statistics)
                                      : encode_piece_of<BFloat16>(p, piece, columns, statistics);
}

template <class T>
void transform(const HadamardRows& p, int64_t begin, int64_t end) {
  const FloatTag d;
  const T* x = static_cast<const T*>(p.x);
  for (int64_t col = begin; col < end; col += kLanes) {
    FloatVector v[kNvfp4Block];
    for (int64_t row = 0; row < kNvfp4Block; ++row) {
      const BitsVector sign = splat((p.signs >> row & 1) != 0 ? bits::kSign : 0);
      v[row] = row < p.rows ? as_float(hn::Xor(load_some(x + row * p.cols + col, end - col), sign))
                            : hn::Zero(d);
    }
    for (int64_t step = 1; step < kNvfp4Block; step *= 2) {
      for (int64_t i = 0; i < kNvfp4Block; ++i) {
        if ((i & step) != 0) continue;
        const FloatVector a = v[i], b = v[i + step];
        v[i] = hn::Add(a, b);
        v[i + step] = hn::Sub(a, b);
      }
    }
    for (int64_t row = 0; row < kNvfp4Block; ++row) {
      const FloatVector made = hn::Mul(v[row], hn::Set(d, 0.25F));
      float* to = p.to + row * p.cols + col;
      if (end - col >= kLanes) {
        hn::StoreU(made, d, to);
      } else {
        HWY_ALIGN float some[kLanes];
        hn::Store(made, d, some);
        std::memcpy(to, some, static_cast<size_t>(end - col) * sizeof(float));
      }
    }
  }
}

void TransformHadamard(const HadamardRows& p, int64_t begin, int64_t end) {
  return p.source == Source::kFloat32 ? transform<float>(p, begin, end)
                                      : transform<BFloat16>(p, begin, end);
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::mx {

HWY_EXPORT(RaiseNvfp4Maxima);
HWY_EXPORT(ChooseNvfp4Scales);
HWY_EXPORT(EncodeNvfp4Piece);
HWY_EXPORT(TransformHadamard);

void raise_nvfp4_maxima_vectors(const Nvfp4Problem& p, PieceRange piece, bool finite_only,
                                uint32_t* most) {
  HWY_DYNAMIC_DISPATCH(RaiseNvfp4Maxima)(p, piece, finite_only, most);
}
void choose_nvfp4_scales_vectors(const Nvfp4Problem& p, Nvfp4Scales& s, int64_t blocks,
                                 uint8_t* bytes, Statistics& statistics) {
  HWY_DYNAMIC_DISPATCH(ChooseNvfp4Scales)(p, s, blocks, bytes, statistics);
}
void encode_nvfp4_piece_vectors(const Nvfp4Problem& p, PieceRange piece, const Nvfp4Scales& columns,
                                Statistics& statistics) {
  HWY_DYNAMIC_DISPATCH(EncodeNvfp4Piece)(p, piece, columns, statistics);
}
void transform_hadamard_vectors(const HadamardRows& p, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(TransformHadamard)(p, begin, end);
}

}  // namespace dovetail::mx
#endif
