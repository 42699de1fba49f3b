// Conversion between stored rows and vectors of float32.
// Compiled once per instruction set: included by *_simd.cpp after simd_config.h, through
// foreach_target.
#if defined(DOVETAIL_EMBEDDING_ROW_FORMAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_EMBEDDING_ROW_FORMAT_INL_H_
#undef DOVETAIL_EMBEDDING_ROW_FORMAT_INL_H_
#else
#define DOVETAIL_EMBEDDING_ROW_FORMAT_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "dovetail/base/philox.h"
#include "dovetail/embedding/pack/row_format.h"
#include "dovetail/mx/format.h"
#include "dovetail/mx/random_inl.h"
#include "dovetail/ops/simd_math_inl.h"
#include "dovetail/ops/workspace.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::embedding {
namespace HWY_NAMESPACE {

using namespace ops::HWY_NAMESPACE;

using CodeTag = hn::Rebind<uint8_t, FloatTag>;
using BitsVector = hn::Vec<BitsTag>;

HWY_INLINE BitsVector splat_bits(uint32_t value) { return hn::Set(BitsTag(), value); }

/// Reader of a stored row. Each RowDtype has one. get() returns elements [column, column + left) of
/// the row, with left <= kLanes, and zeros after them.
struct Float32Row {
  Float32Row(const void* row, int64_t) : row(static_cast<const float*>(row)) {}
  HWY_INLINE FloatVector get(int64_t column, int64_t left) const {
    return load(row + column, left);
  }
  const float* row;
};

struct BFloat16Row {
  BFloat16Row(const void* row, int64_t) : row(static_cast<const BFloat16*>(row)) {}
  HWY_INLINE FloatVector get(int64_t column, int64_t left) const {
    return load(row + column, left);
  }
  const BFloat16* row;
};

struct MXFP8Row {
  MXFP8Row(const void* row, int64_t dim)
      : codes(static_cast<const uint8_t*>(row)), scales(codes + dim) {}
  HWY_INLINE FloatVector get(int64_t column, int64_t left) const {
    const uint32_t byte = scales[column / mx::kBlock];
    const uint32_t scale = byte == mx::kScaleNan ? mx::bits::kQuietNan
                           : byte == 0           ? 1u << (mx::bits::kFractionBits - 1)
                                                 : byte << mx::bits::kFractionBits;
    return hn::Mul(element(hn::PromoteTo(BitsTag(), load_codes(codes + column, left))),
                   splat(std::bit_cast<float>(scale)));
  }

 private:
  static HWY_INLINE hn::Vec<CodeTag> load_codes(const uint8_t* from, int64_t left) {
    if (HWY_LIKELY(left >= kLanes)) return hn::LoadU(CodeTag(), from);
    HWY_ALIGN uint8_t values[kLanes] = {};
    std::memcpy(values, from, static_cast<size_t>(left));
    return hn::Load(CodeTag(), values);
  }
  /// Decodes E4M3 codes. A subnormal code first gets the smallest normal exponent. A subtraction
  /// then removes the implicit leading one.
  static HWY_INLINE FloatVector element(BitsVector code) {
    constexpr uint32_t kSmallestNormal = 121u << 23;
    const BitsVector magnitude = hn::ShiftLeft<20>(hn::And(code, splat_bits(0x7f)));
    const BitsVector sign = hn::ShiftLeft<24>(hn::And(code, splat_bits(0x80)));
    const BitsVector normal = hn::Add(magnitude, splat_bits(120u << 23));
    const FloatVector raised =
        hn::BitCast(FloatTag(), hn::Add(magnitude, splat_bits(kSmallestNormal)));
    const BitsVector subnormal =
        hn::BitCast(BitsTag(), hn::Sub(raised, splat(std::bit_cast<float>(kSmallestNormal))));
    const BitsVector value =
        hn::IfThenElse(hn::Lt(magnitude, splat_bits(1u << 23)), subnormal, normal);
    return hn::BitCast(FloatTag(), hn::Or(sign, value));
  }
  const uint8_t *codes, *scales;
};

/// Calls `body` with a null pointer to the reader type for `dtype`. The pointer only passes the
/// type on: `body` is a generic lambda.
template <class Body>
HWY_INLINE void with_rows(RowDtype dtype, const Body& body) {
  switch (dtype) {
    case RowDtype::kFloat32:
      return body(static_cast<Float32Row*>(nullptr));
    case RowDtype::kBFloat16:
      return body(static_cast<BFloat16Row*>(nullptr));
    case RowDtype::kMXFP8:
      return body(static_cast<MXFP8Row*>(nullptr));
  }
}

HWY_INLINE void prefetch_bytes(const void* from, int64_t bytes) {
  constexpr int64_t kLineBytes = 64;
  for (int64_t i = 0; i < bytes; i += kLineBytes) hwy::Prefetch(static_cast<const char*>(from) + i);
}

/// Returns `dim` rounded up to a multiple of kLanes.
HWY_INLINE int64_t whole_vectors(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

/// Decodes a row of `dim` elements. `values` has room for whole_vectors(dim) elements. Its elements
/// from index `dim` on become zeros.
template <class Row>
HWY_INLINE void decode_elements(const void* from, int64_t dim, float* values) {
  const Row row(from, dim);
  for (int64_t i = 0; i < dim; i += kLanes) store(row.get(i, dim - i), values + i);
}

/// Returns an array whose element i is the random word for element i of the row (`dim` elements).
/// The array may be longer. It is valid until this thread's next call.
inline const uint32_t* random_words(const RowWords& words, int64_t dim) {
  const int64_t calls = (dim + 3) / 4, room = 4 * calls + 4 * kLanes;
  const auto first = static_cast<uint64_t>(words.first_column / 4);
  auto* to = reinterpret_cast<uint32_t*>(
      ops::workspace(ops::Workspace::kRandomWords, static_cast<size_t>(room)));
#if HWY_TARGET == HWY_SCALAR
  for (int64_t call = 0; call < calls; ++call) {
    const PhiloxWords four =
        philox_words(words.key, first + static_cast<uint64_t>(call), words.row);
    std::copy_n(four.word, 4, to + 4 * call);
  }
#else
  mx::HWY_NAMESPACE::fill_philox(words.key, first, words.row, calls, to);
#endif
  return to;
}

HWY_INLINE BitsVector load_words(const uint32_t* from) { return hn::LoadU(BitsTag(), from); }

inline void encode_bfloat16(const float* values, int64_t dim, const uint32_t* words, BFloat16* to) {
  for (int64_t i = 0; i < dim; i += kLanes) {
    const BitsVector x = hn::BitCast(BitsTag(), load(values + i, dim - i));
    const BitsVector raised = hn::Add(x, hn::ShiftRight<16>(load_words(words + i)));
    const BitsVector cut = hn::And(raised, splat_bits(0xffff0000));
    const auto finite =
        hn::Lt(hn::And(x, splat_bits(mx::bits::kMagnitude)), splat_bits(mx::bits::kInfinity));
    store(hn::BitCast(FloatTag(), hn::IfThenElse(finite, cut, x)), to + i, dim - i);
  }
}

/// Constants with which encode_vectors encodes E4M3. The scalar target has no vectors and needs
/// none.
#if HWY_TARGET == HWY_SCALAR
struct CodeConstants {
  explicit CodeConstants(const mx::ElementSpec&) {}
};
inline bool encode_vectors(const CodeConstants&, const float*, int64_t, int, const uint32_t*,
                           uint8_t*) {
  return false;
}
#else
struct CodeConstants : mx::HWY_NAMESPACE::Constants {
  explicit CodeConstants(const mx::ElementSpec& spec)
      : Constants(mx::HWY_NAMESPACE::constants_of(mx::Encoder(spec))) {}
};
/// Encodes the `count` elements of an MXFP8 block with SIMD vectors and returns true. `scale` is
/// the block's E8M0 byte. The block must be finite and not small (see encode_block). The scalar
/// target encodes nothing and returns false.
inline bool encode_vectors(const CodeConstants& constants, const float* values, int64_t count,
                           int scale, const uint32_t* words, uint8_t* codes) {
  const auto exponent = static_cast<uint32_t>(2 * mx::kScaleBias - scale);
  const FloatVector inverse = splat(std::bit_cast<float>(exponent << mx::bits::kFractionBits));
  mx::HWY_NAMESPACE::Energies energies = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
  BitsVector underflows = splat_bits(0);
  for (int64_t i = 0; i < count; i += kLanes) {
    const BitsVector x = hn::BitCast(BitsTag(), load(values + i, count - i));
    const BitsVector code = mx::HWY_NAMESPACE::encode_at_random<uint8_t, false>(
        constants, x, load_words(words + i), inverse, inverse, energies, underflows);
    HWY_ALIGN uint8_t bytes[kLanes];
    hn::Store(hn::U8FromU32(hn::And(code, splat_bits(0xff))), CodeTag(), bytes);
    std::memcpy(codes + i, bytes, static_cast<size_t>(std::min(kLanes, count - i)));
  }
  return true;
}
#endif

/// Writes the codes of one MXFP8 block and returns its scale, an E8M0 byte. Zero, small and
/// non-finite blocks use integer arithmetic, as in `mx::quantize`.
inline uint8_t encode_block(const CodeConstants& constants, const mx::ElementSpec& spec,
                            const float* values, int64_t count, const uint32_t* words,
                            uint8_t* codes) {
  // Bits of 2^-60. A block is small if its largest magnitude is less. Stochastic rounding uses
  // units of 2^-32 of an element's last place, which may then be subnormal.
  constexpr uint32_t kSmallest = 67u << 23;
  uint32_t amax = 0;
  for (int64_t i = 0; i < count; ++i)
    amax = std::max(amax, std::bit_cast<uint32_t>(values[i]) & mx::bits::kMagnitude);
  const int scale = mx::scale_byte(amax, spec, mx::scale_addend(spec, mx::ScaleMode::kRoundUp));
  const bool plain = amax >= kSmallest && amax < mx::bits::kInfinity;
  if (!plain || !encode_vectors(constants, values, count, scale, words, codes)) {
    for (int64_t i = 0; i < count; ++i)
      codes[i] = mx::encode(std::bit_cast<uint32_t>(values[i]), scale, spec,
                            {.stochastic = true, .random = words[i]});
  }
  return static_cast<uint8_t>(scale);
}

inline void encode_mxfp8(const float* values, int64_t dim, const uint32_t* words, uint8_t* to) {
  const mx::ElementSpec& spec = mx::element_spec(mx::Format::kE4M3);
  const CodeConstants constants(spec);
  for (int64_t i = 0; i < dim; i += mx::kBlock)
    to[dim + i / mx::kBlock] = encode_block(
        constants, spec, values + i, std::min<int64_t>(mx::kBlock, dim - i), words + i, to + i);
}

inline void encode_elements(RowDtype dtype, const float* values, int64_t dim, const RowWords& words,
                            void* to) {
  switch (dtype) {
    case RowDtype::kFloat32:
      std::memcpy(to, values, static_cast<size_t>(dim) * sizeof(float));
      return;
    case RowDtype::kBFloat16:
      return encode_bfloat16(values, dim, random_words(words, dim), static_cast<BFloat16*>(to));
    case RowDtype::kMXFP8:
      return encode_mxfp8(values, dim, random_words(words, dim), static_cast<uint8_t*>(to));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::embedding
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
