// Choice of the scales of several blocks at a time, and the statistics that follow from the scales.
// Compiled once per instruction set: included by *_simd.cpp after simd_config.h, through Highway's
// foreach_target.
#if defined(DOVETAIL_MX_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_MX_SCALES_INL_H_
#undef DOVETAIL_MX_SCALES_INL_H_
#else
#define DOVETAIL_MX_SCALES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>

#include "dovetail/mx/quantize_inl.h"
#include "dovetail/mx/quantize_simd.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// Maximum size of a chunk: consecutive elements of a row whose scales are chosen together. kChunk
// counts elements, and kChunkBlocks counts blocks.
constexpr int64_t kChunk = kPieceColumns;
constexpr int64_t kChunkBlocks = kChunk / kBlock;
// Number of elements of a group: four blocks along a row. If the end of a row does not fill a
// group, it is encoded in a padded copy.
constexpr int64_t kGroup = 4 * kBlock;
// 2^-80, the smallest nonzero amax for the vector kernels. Below it, half a unit in the format's
// last place may be subnormal.
constexpr uint32_t kSmallestNormalAmax = 47u << 23;
// 2^-60, the smallest nonzero amax for stochastic rounding in the vector kernels. Below it, 2^-32
// of a unit in the format's last place may be subnormal.
constexpr uint32_t kSmallestRandomAmax = 67u << 23;

/// Scales 2^X of up to kChunkBlocks blocks, and numbers that follow from them.
struct Scales {
  /// Largest magnitude of each block. The caller of `choose_scales` writes bits of the input type,
  /// and `choose_scales` converts them to float32 bits.
  HWY_ALIGN uint32_t amax[kChunkBlocks];
  HWY_ALIGN uint32_t byte[kChunkBlocks];  ///< scale bytes
  HWY_ALIGN float inverse[kChunkBlocks];  ///< 2^-X
  /// 4^(X - largest X): factor for a block's Energies (quantize_inl.h) in sums over blocks.
  HWY_ALIGN float weight[kChunkBlocks];
  /// X * 2^7 modulo 2^16, in both halves of each entry. X then has the position of a bfloat16's
  /// exponent.
  HWY_ALIGN uint32_t exponents[kChunkBlocks];
  int largest = 0;         ///< largest scale byte
  bool saturates = false;  ///< true if any block saturates
};
static_assert(kPacked <= kChunkBlocks, "a tile of columns is a group too");

/// Counts of one `choose_scales` call. They are added to the statistics only if no block needs
/// `quantize_exactly`.
struct ScaleCounts {
  /// Lane i covers blocks i, i + kLanes and so on.
  /// - most: largest magnitude, as float32 bits.
  /// - least_byte, most_byte: smallest and largest scale byte.
  /// - special: mask, set if a block needs `quantize_exactly`.
  BitsVector most, least_byte, most_byte, special;
  int64_t zero, saturating, floor_saturated;  ///< numbers of blocks, as in Statistics
};

/// Chooses the scales of the kLanes blocks from index i on, and adds to `counts`. A block with a
/// nonzero amax not above `smallest` (float32 bits) needs `quantize_exactly`.
template <class T>
HWY_INLINE void choose_scale(const QuantizeProblem& p, const Encoder& f, BitsVector smallest,
                             Scales& s, int64_t i, ScaleCounts& counts) {
  const BitsTag d;
  const hn::RebindToSigned<BitsTag> di;
  const BitsVector a = widen<T>(hn::Load(d, s.amax + i));
  const auto exponent = hn::ShiftRight<bits::kFractionBits>(hn::Add(a, splat(p.addend)));
  const auto shifted = hn::Sub(hn::BitCast(di, exponent), hn::Set(di, p.spec.max_exponent));
  const BitsVector byte = hn::BitCast(d, hn::Max(shifted, hn::Zero(di)));
  const auto zero = hn::Eq(a, splat(0));
  const auto tiny = hn::Lt(hn::Sub(a, splat(1)), smallest);
  const auto special = hn::Or(hn::Or(tiny, hn::Gt(a, splat(bits::kInfinity - 1))),
                              hn::Gt(byte, splat(kLargestScale - 1)));
  counts.special = hn::Or(counts.special, hn::VecFromMask(d, special));
  counts.most = hn::Max(counts.most, a);
  counts.most_byte = hn::Max(counts.most_byte, byte);
  counts.least_byte = hn::Min(counts.least_byte, hn::IfThenElse(zero, splat(255), byte));
  counts.zero += count_true(zero);
  counts.floor_saturated +=
      count_true(hn::Gt(hn::And(a, splat(bits::kFraction)), splat(p.spec.max_fraction)));
  const BitsVector limit = hn::Add(
      hn::ShiftLeft<bits::kFractionBits>(hn::Sub(byte, splat(kScaleBias))), splat(f.max_bits));
  counts.saturating += count_true(hn::Gt(a, limit));
  hn::Store(a, d, s.amax + i);
  hn::Store(byte, d, s.byte + i);
  hn::Store(as_float(hn::ShiftLeft<bits::kFractionBits>(hn::Sub(splat(254), byte))), FloatTag(),
            s.inverse + i);
}

/// Computes all other fields of s from s.amax, for `count` blocks. If `count` is not a multiple of
/// kLanes, the entries of s.amax up to the next multiple must be zero. Writes the scale bytes to
/// `scales` and adds to `statistics`. Returns false and counts nothing if a block needs
/// `quantize_exactly`.
template <class T>
bool choose_scales(const QuantizeProblem& p, const Encoder& f, Scales& s, int64_t count,
                   uint8_t* scales, Statistics& statistics) {
  const BitsTag d;
  const hn::RebindToSigned<BitsTag> di;
  const int64_t padded = hwy::RoundUpTo(static_cast<size_t>(count), static_cast<size_t>(kLanes));
  ScaleCounts counts = {splat(0), splat(255), splat(0), splat(0), 0, 0, 0};
  const BitsVector smallest = splat((p.stochastic ? kSmallestRandomAmax : kSmallestNormalAmax) - 1);
  for (int64_t i = 0; i < padded; i += kLanes) choose_scale<T>(p, f, smallest, s, i, counts);
  if (!hn::AllTrue(d, hn::Eq(counts.special, splat(0)))) return false;
  s.largest = static_cast<int>(hn::GetLane(hn::MaxOfLanes(d, counts.most_byte)));
  s.saturates = counts.saturating != 0;
  for (int64_t i = 0; i < padded; i += kLanes) {
    const auto byte = hn::BitCast(di, hn::Load(d, s.byte + i));
    const auto twice = hn::ShiftLeft<1>(hn::Sub(byte, hn::Set(di, s.largest)));
    const auto field = hn::Max(hn::Add(twice, hn::Set(di, bits::kExponentBias)), hn::Zero(di));
    hn::Store(hn::BitCast(FloatTag(), hn::ShiftLeft<bits::kFractionBits>(field)), FloatTag(),
              s.weight + i);
    const auto exponent = hn::ShiftLeft<7>(hn::Sub(hn::BitCast(d, byte), splat(kScaleBias)));
    hn::Store(hn::Or(hn::ShiftLeft<16>(exponent), hn::And(exponent, splat(0xffff))), d,
              s.exponents + i);
    const hn::Rebind<uint8_t, BitsTag> d8;
    if (i + kLanes <= count) {
      hn::StoreU(hn::DemoteTo(d8, byte), d8, scales + i);
    } else {
      for (int64_t j = i; j < count; ++j) scales[j] = static_cast<uint8_t>(s.byte[j]);
    }
  }
  statistics.blocks += count;
  statistics.zero_blocks += counts.zero - (padded - count);
  statistics.saturating_blocks += counts.saturating;
  statistics.floor_saturated_blocks += counts.floor_saturated;
  statistics.amax_bits =
      std::max(statistics.amax_bits, hn::GetLane(hn::MaxOfLanes(d, counts.most)));
  statistics.min_scale = std::min(
      statistics.min_scale, static_cast<int>(hn::GetLane(hn::MinOfLanes(d, counts.least_byte))));
  statistics.max_scale = std::max(statistics.max_scale, s.largest);
  return true;
}

/// Returns the largest magnitude that rounds to zero in a block with this scale byte, as float32
/// bits.
HWY_INLINE BitsVector underflow_limit(const ElementSpec& spec, BitsVector byte) {
  const auto last = static_cast<uint32_t>(spec.min_exponent - spec.mantissa_bits - 1);
  return hn::ShiftLeft<bits::kFractionBits>(hn::Add(byte, splat(last)));
}
/// Returns the largest magnitude that does not saturate in a block with this scale byte, as float32
/// bits.
HWY_INLINE BitsVector saturation_limit(const Encoder& f, BitsVector byte) {
  return hn::Add(hn::ShiftLeft<bits::kFractionBits>(hn::Sub(byte, splat(kScaleBias))),
                 splat(f.max_bits));
}

/// Counts underflows and saturations of kLanes elements, reading them a second time. This is needed
/// only if a code is zero or a block saturates. With kRandom, only saturations are counted, since
/// `encode_at_random` counts underflows.
template <Path kPath, class T>
HWY_INLINE void count_limits(const QuantizeProblem& p, const Encoder& f, const T* x,
                             BitsVector byte, bool saturates, Statistics& statistics) {
  const BitsVector magnitude = hn::And(load_bits(x), splat(bits::kMagnitude));
  if constexpr (kPath != Path::kRandom)
    statistics.underflows +=
        count_true(hn::Lt(hn::Sub(magnitude, splat(1)), underflow_limit(p.spec, byte)));
  if (saturates) statistics.saturations += count_true(hn::Gt(magnitude, saturation_limit(f, byte)));
}

/// Adds `energies` to the sums of `statistics`. `energies` are in units of the squared largest
/// scale, 2^(2 (largest - 127)).
void add_energies(const Energies& energies, int largest, Statistics& statistics) {
  constexpr int kFractionBits = 52, kBias = 1023;
  const auto unit = std::bit_cast<double>(static_cast<uint64_t>(2 * (largest - kScaleBias) + kBias)
                                          << kFractionBits);
  statistics.signal += static_cast<double>(sum_lanes(energies.signal)) * unit;
  statistics.error += static_cast<double>(sum_lanes(energies.error)) * unit;
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
