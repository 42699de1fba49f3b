// Encoding of packs of elements in FP8, and the counts of it. Compiled once per instruction set:
// included by float8_simd.cpp after simd_config.h, through Highway's foreach_target.
#if defined(DOVETAIL_MX_FLOAT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_MX_FLOAT8_INL_H_
#undef DOVETAIL_MX_FLOAT8_INL_H_
#else
#define DOVETAIL_MX_FLOAT8_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "dovetail/mx/float8_simd.h"
#include "dovetail/mx/quantize_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

/// Stores a pack in the order that the elements had before `load_pack<T>`.
template <class T>
HWY_INLINE void store_pack(const BitsVector (&encoded)[kPack], uint8_t* to) {
  hn::StoreU(pack<T>(encoded), ByteTag(), to);
}
template <class T>
HWY_INLINE void store_pack(const BitsVector (&encoded)[kPack], float* to) {
  auto* words = reinterpret_cast<uint32_t*>(to);
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; v += 2) {
    if constexpr (sizeof(T) == 2) {
      hn::StoreInterleaved2(encoded[v], encoded[v + 1], BitsTag(), words + v * kLanes);
    } else {
      hn::StoreU(encoded[v], BitsTag(), words + v * kLanes);
      hn::StoreU(encoded[v + 1], BitsTag(), words + (v + 1) * kLanes);
    }
  }
}
template <class T>
HWY_INLINE void store_pack(const BitsVector (&encoded)[kPack], BFloat16* to) {
  static_assert(std::is_same_v<T, BFloat16>);
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; v += 2)  // exact in 16 bits: the low halves are zero
    hn::StoreU(hn::Or(hn::ShiftRight<16>(encoded[v]), encoded[v + 1]), BitsTag(),
               reinterpret_cast<uint32_t*>(to) + v / 2 * kLanes);
}

/// Scales of the vectors of a pack, in the order of `load_pack`.
struct PackScales {
  FloatVector factor[kPack], scale[kPack];
};
HWY_INLINE PackScales same_scales(float factor, float scale) {
  PackScales s;
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; ++v) {
    s.factor[v] = hn::Set(FloatTag(), factor);
    s.scale[v] = hn::Set(FloatTag(), scale);
  }
  return s;
}

/// Counts of encoded packs, lane by lane. Vector v of a pack adds to entry v % kParts of
/// `energies`.
template <int kParts>
struct PackCounts {
  PackCounts() { clear(); }
  void clear() {
    DOVETAIL_UNROLL
    for (int v = 0; v < kParts; ++v) energies[v] = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
  }
  void finish(int64_t elements, Statistics& statistics) const {
    statistics.elements += elements;
    statistics.underflows += sum_counts(underflows);
    statistics.saturations += sum_counts(saturations);
  }
  Energies energies[kParts];
  BitsVector underflows = splat(0), saturations = splat(0);
};

float largest_scale(const Float8Scale* scales, int64_t count) {
  return std::max_element(
             scales, scales + count,
             [](const Float8Scale& a, const Float8Scale& b) { return a.scale < b.scale; })
      ->scale;
}

/// Compile-time properties of an encoding loop: memory of x and of the result, method, and counts.
template <class T, class Out, Path kPath, bool kCount>
struct Loop {
  /// Encodes kPacked elements. `most`: larger magnitudes saturate, with Path::kClamp alone.
  template <int kParts>
  static HWY_INLINE void encode_pack(const Constants& c, BitsVector most, const T* x,
                                     const PackScales& s, PackCounts<kParts>& counts, Out* to) {
    BitsVector packed[kPack];
    load_pack(x, packed);
    const BitsVector number = std::is_same_v<Out, uint8_t> ? c.code_mask : c.magnitude;
    DOVETAIL_UNROLL
    for (int v = 0; v < kPack; ++v) {
      const BitsVector size = hn::And(packed[v], c.magnitude);
      Energies unused = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
      const BitsVector encoded = encode<Out, false, kPath>(
          c, packed[v], s.factor[v], s.scale[v], kCount ? counts.energies[v % kParts] : unused);
      if constexpr (kCount) {
        const auto vanished =
            hn::AndNot(hn::Eq(size, splat(0)), hn::Eq(hn::And(encoded, number), splat(0)));
        counts.underflows = hn::Sub(counts.underflows, hn::VecFromMask(BitsTag(), vanished));
        if constexpr (kPath == Path::kClamp)
          counts.saturations =
              hn::Sub(counts.saturations, hn::VecFromMask(BitsTag(), hn::Gt(size, most)));
      }
      packed[v] = encoded;
    }
    store_pack<T>(packed, to);
  }
};

template <class L>
struct LoopTypes;
template <class T_, class Out_, Path kPath, bool kCount_>
struct LoopTypes<Loop<T_, Out_, kPath, kCount_>> {
  using T = T_;
  using Out = Out_;
  static constexpr bool kCount = kCount_;
};

/// Constants of a problem for encoding loops.
struct Coder {
  explicit Coder(const Float8Problem& p)
      : constants(constants_of(Encoder(p.spec))),
        most(splat(p.amax > 0 ? std::bit_cast<uint32_t>(p.amax) : bits::kInfinity)),
        clamps(p.amax > 0),
        table(fits_table(p.spec)) {}
  Constants constants;
  BitsVector most;
  bool clamps, table;
};

/// Calls f with a null pointer to the Loop for each result of the target. Only the first one
/// counts, if `counts` is set.
template <class T, class F>
void with_loops(const Coder& f, const Float8Target& target, bool counts, F visit) {
  const auto by_path = [&]<class Out, bool kCount>(Out* out, std::bool_constant<kCount>) {
    if (f.clamps) return visit(static_cast<Loop<T, Out, Path::kClamp, kCount>*>(nullptr), out);
    if (f.table) return visit(static_cast<Loop<T, Out, Path::kTable, kCount>*>(nullptr), out);
    visit(static_cast<Loop<T, Out, Path::kPlain, kCount>*>(nullptr), out);
  };
  const auto by_counts = [&](auto* out) {
    if (counts) return by_path(out, std::true_type());
    by_path(out, std::false_type());
  };
  if (target.values && target.wide_values) {
    by_counts(static_cast<float*>(target.values));
  } else if (target.values) {
    by_counts(static_cast<T*>(target.values));
  }
  if (target.values) counts = false;
  if (target.codes) by_counts(target.codes);
}

/// Sums over packs whose scales differ. Energies are in units of `largest`, the largest scale.
struct Sums {
  explicit Sums(float largest) : largest(largest) {}
  HWY_INLINE void add(const Energies& energies, FloatVector scale) {
    const FloatVector ratio = hn::Mul(scale, hn::Set(FloatTag(), 1 / largest)),
                      weight = hn::Mul(ratio, ratio);
    total.signal = hn::MulAdd(energies.signal, weight, total.signal);
    total.error = hn::MulAdd(energies.error, weight, total.error);
  }
  void finish(Statistics& statistics) const {
    const double unit = static_cast<double>(largest) * static_cast<double>(largest);
    statistics.signal += static_cast<double>(sum_lanes(total.signal)) * unit;
    statistics.error += static_cast<double>(sum_lanes(total.error)) * unit;
  }
  float largest;
  Energies total = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
};

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
