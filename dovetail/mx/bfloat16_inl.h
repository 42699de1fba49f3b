// Vector code that encodes bfloat16 elements in formats with three mantissa bits. It works in lanes
// of 16 bits, called words here. A vector then holds twice as many elements as in float32. Compiled
// once per instruction set: included by *_simd.cpp after simd_config.h, through Highway's
// foreach_target.
#if defined(DOVETAIL_MX_BFLOAT16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_MX_BFLOAT16_INL_H_
#undef DOVETAIL_MX_BFLOAT16_INL_H_
#else
#define DOVETAIL_MX_BFLOAT16_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "dovetail/mx/quantize_inl.h"
#include "dovetail/mx/scales_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3

using WordTag = hn::Repartition<uint16_t, BitsTag>;
using WordVector = hn::Vec<WordTag>;
static_assert(hn::MaxLanes(WordTag()) == kBlock, "a vector is a block of a row");
static_assert(kPack == 4, "two vectors are a pack");

HWY_INLINE WordVector word_splat(uint16_t value) { return hn::Set(WordTag(), value); }

HWY_INLINE WordVector load_words(const BFloat16* x) {
  return hn::LoadU(WordTag(), reinterpret_cast<const uint16_t*>(x));
}

/// Constants for loops over bfloat16 elements. Both tables are indexed by the five lowest of a
/// bfloat16's seven fraction bits. Rounding to three mantissa bits drops the four lowest. The fifth
/// is the lowest bit that remains, and it decides ties. A scaled number is an element's magnitude
/// divided by its block's scale.
struct WordConstants {
  explicit WordConstants(const ElementSpec& spec) {
    constexpr int kDropped = 4, kUnit = 1 << kDropped, kBit = 1 << 7;
    const int rebias = 1 - spec.min_exponent - bits::kExponentBias;
    HWY_ALIGN uint16_t round_table[2 * kUnit], residue_table[2 * kUnit];
    for (int i = 0; i < 2 * kUnit; ++i) {
      const int dropped = i % kUnit, odd = i / kUnit;
      const bool up = 2 * dropped + odd > kUnit;
      round_table[i] = static_cast<uint16_t>(rebias * kBit + (up ? kUnit - dropped : -dropped));
      // A number with exponent e is rounded off by lost * 2^(e - 7). As a bfloat16, this residue
      // has exponent e - (7 - log) and significand lost / 2^log. The entry is subtracted from the
      // number's exponent bits to get these bits. Without a residue it is 0xffff: the saturating
      // subtraction gives 0.
      const auto lost = static_cast<unsigned>(std::min(dropped, kUnit - dropped));
      const int log = static_cast<int>(std::bit_width(lost)) - 1;
      residue_table[i] = lost == 0
                             ? 0xffff
                             : static_cast<uint16_t>((7 - log) * kBit -
                                                     (static_cast<int>(lost << (7 - log)) - kBit));
    }
    round = hn::Load(WordTag(), round_table);
    residue = hn::Load(WordTag(), residue_table);
    min_normal =
        word_splat(static_cast<uint16_t>((spec.min_exponent + bits::kExponentBias) * kBit));
  }
  /// Table for rounding. The bits of a scaled number, plus an entry, give 2^4 times the number's
  /// code.
  WordVector round;
  /// Table of rounding errors. The exponent bits of a scaled number, minus an entry, give the
  /// number's rounding error as bfloat16 bits. The subtraction saturates at 0.
  WordVector residue;
  WordVector min_normal;  ///< bits of the format's smallest normal number
};

/// Returns true if `encode_words` suits a format: three mantissa bits and at least nine exponents.
/// `encode_words` cannot encode nonzero numbers below the smallest normal one. With nine exponents,
/// these are rare.
HWY_INLINE bool fits_words(const ElementSpec& spec) {
  return spec.mantissa_bits == 3 && spec.max_exponent - spec.min_exponent >= 8;
}

/// Returns the entry of `table` at `index` in each lane. The instruction reads only the five low
/// bits of an index. Highway 1.0 lacks this operation for 16 bits.
HWY_INLINE WordVector lookup_word(WordVector table, WordVector index) {
  return WordVector{_mm512_permutexvar_epi16(index.raw, table.raw)};
}

/// Float32 numbers of a vector of bfloat16 bits: those in its even lanes and those in its odd
/// lanes.
struct FloatPair {
  explicit FloatPair(WordVector words)
      : even(as_float(hn::ShiftLeft<16>(hn::BitCast(BitsTag(), words)))),
        odd(as_float(hn::And(hn::BitCast(BitsTag(), words), splat(0xffff0000)))) {}
  FloatVector even, odd;
};

/// Result of `encode_words`: kBlock encoded elements.
struct EncodedWords {
  WordVector codes;  ///< codes with their signs, in the high byte of each lane
  /// Scaled numbers before rounding (`scaled`), and their exact rounding errors (`error`). Both are
  /// magnitudes as bfloat16, in units of the scale.
  WordVector scaled, error;
  /// Mask of the lanes with a nonzero number below the smallest normal number of the format. All
  /// results of these lanes are wrong.
  uint32_t small;
};

/// Makes the same codes as `encode` (quantize_inl.h), for elements that do not saturate.
/// `exponents`: for an element with scale 2^X, its lane holds X * 2^7, modulo 2^16. X then has the
/// position of a bfloat16's exponent.
HWY_INLINE EncodedWords encode_words(const WordConstants& c, WordVector x, WordVector exponents) {
  const WordVector magnitude_mask = word_splat(0x7fff), magnitude = hn::And(x, magnitude_mask);
  const __mmask32 nonzero = _mm512_test_epi16_mask(magnitude.raw, magnitude.raw);
  const WordVector scaled{_mm512_maskz_sub_epi16(nonzero, magnitude.raw, exponents.raw)};
  const WordVector shifted{
      _mm512_maskz_add_epi16(nonzero, scaled.raw, lookup_word(c.round, magnitude).raw)};
  return {hn::IfVecThenElse(magnitude_mask, hn::ShiftLeft<4>(shifted), x), scaled,
          hn::SaturatedSub(hn::And(scaled, word_splat(0x7f80)), lookup_word(c.residue, magnitude)),
          _mm512_mask_cmplt_epi16_mask(nonzero, scaled.raw, c.min_normal.raw)};
}

/// Joins the codes of two vectors into one vector of bytes, `first` in the lower half.
HWY_INLINE ByteVector join_codes(const EncodedWords& first, const EncodedWords& second) {
  return hn::ConcatOdd(ByteTag(), hn::BitCast(ByteTag(), second.codes),
                       hn::BitCast(ByteTag(), first.codes));
}

/// Adds the squares of numbers and of their rounding errors to sums: even lanes to `even`, odd
/// lanes to `odd`. Numbers are added in the same order as by `encode` on vectors from `load_pack`
/// (quantize_inl.h).
HWY_INLINE void accumulate(const EncodedWords& words, Energies& even, Energies& odd) {
  const FloatPair scaled(words.scaled), error(words.error);
  even.signal = hn::MulAdd(scaled.even, scaled.even, even.signal);
  even.error = hn::MulAdd(error.even, error.even, even.error);
  odd.signal = hn::MulAdd(scaled.odd, scaled.odd, odd.signal);
  odd.error = hn::MulAdd(error.odd, error.odd, odd.error);
}

/// Encoder of blocks along a row, two blocks at a time.
class RowWords {
 public:
  explicit RowWords(const WordConstants& constants) : constants_(constants) {}
  /// Encodes two blocks, the 2 * kBlock elements at x, and stores the codes at `to` through `sink`.
  /// The scales of the blocks are entries `block` and `block + 1` of s. Each block's energies are
  /// multiplied by its weight in s and added to `total`. Returns false and stores nothing if
  /// `encode_words` cannot encode an element (EncodedWords::small).
  template <class Sink>
  HWY_INLINE bool encode(const Scales& s, int64_t block, const BFloat16* x, Energies& total,
                         Sink& sink, uint8_t* to) const {
    const EncodedWords words[] = {
        encode_words(constants_, load_words(x), exponents(s, block)),
        encode_words(constants_, load_words(x + kBlock), exponents(s, block + 1))};
    if ((words[0].small | words[1].small) != 0) return false;
    DOVETAIL_UNROLL
    for (int i = 0; i < 2; ++i) {
      Energies energies = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
      accumulate(words[i], energies, energies);
      const FloatVector weight = hn::Set(FloatTag(), s.weight[block + i]);
      total.signal = hn::MulAdd(energies.signal, weight, total.signal);
      total.error = hn::MulAdd(energies.error, weight, total.error);
    }
    sink.put_bytes(join_codes(words[0], words[1]), to);
    return true;
  }

 private:
  static HWY_INLINE WordVector exponents(const Scales& s, int64_t block) {
    return hn::BitCast(WordTag(), splat(s.exponents[block]));
  }
  WordConstants constants_;
};

/// Encoder of a tile: 2 * kBlock neighbouring blocks along columns. It encodes one row of the tile
/// (2 * kBlock elements) at a time. Each column has its own scale in s.
class TileWords {
 public:
  TileWords(const WordConstants& constants, const Scales& s)
      : constants_(constants),
        exponents_{exponents(s.exponents), exponents(s.exponents + kBlock)} {}
  /// Encodes the 2 * kBlock elements at x and stores the codes at `to` through `sink`. Adds the
  /// energies of the elements to `energies`, one entry per vector of a pack. Returns false in the
  /// same cases as RowWords::encode.
  template <class Sink>
  HWY_INLINE bool encode(const BFloat16* x, Energies (&energies)[kPack], Sink& sink,
                         uint8_t* to) const {
    const EncodedWords words[] = {encode_words(constants_, load_words(x), exponents_[0]),
                                  encode_words(constants_, load_words(x + kBlock), exponents_[1])};
    if ((words[0].small | words[1].small) != 0) return false;
    accumulate(words[0], energies[0], energies[1]);
    accumulate(words[1], energies[2], energies[3]);
    sink.put_bytes(join_codes(words[0], words[1]), to);
    return true;
  }

 private:
  static HWY_INLINE WordVector exponents(const uint32_t* from) {
    const auto low = hn::Load(BitsTag(), from), high = hn::Load(BitsTag(), from + kLanes);
    return hn::ConcatEven(WordTag(), hn::BitCast(WordTag(), high), hn::BitCast(WordTag(), low));
  }
  WordConstants constants_;
  WordVector exponents_[2];
};

/// True if elements of type T are encoded to results of type Out by RowWords and TileWords.
template <class T, class Out>
constexpr bool kHasWords = std::is_same_v<T, BFloat16> && std::is_same_v<Out, uint8_t>;

#elif HWY_TARGET != HWY_SCALAR

// Stand-ins for instruction sets without `encode_words`. They encode nothing.
template <class T, class Out>
constexpr bool kHasWords = false;
HWY_INLINE bool fits_words(const ElementSpec&) { return false; }
struct WordConstants {
  explicit WordConstants(const ElementSpec&) {}
};
struct RowWords {
  explicit RowWords(const WordConstants&) {}
  template <class... Arguments>
  bool encode(Arguments&&...) const {
    return false;
  }
};
struct TileWords {
  TileWords(const WordConstants&, const Scales&) {}
  template <class... Arguments>
  bool encode(Arguments&&...) const {
    return false;
  }
};

#endif  // HWY_AVX3
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
