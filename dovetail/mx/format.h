#pragma once

#include <cstdint>
#include <string_view>

#include "dovetail/mx/codec.h"

/// Microscaling (MX) number formats (OCP Microscaling Formats v1.0) as data. A block of 32
/// consecutive elements shares a scale 2^X.
namespace dovetail::mx {

/// Element formats. ExMy has x exponent bits and y mantissa bits. Largest numbers: E4M3 448, E5M2
/// 57344, E3M2 28, E2M3 7.5, E2M1 6, MXINT8 127/64. MXINT8 elements are integers times 2^-6; -128
/// is unused.
enum class Format { kE4M3, kE5M2, kE3M2, kE2M3, kE2M1, kInt8 };

/// Rule for a block's scale 2^X, given its largest magnitude `amax`. `max` is the format's largest
/// number, `emax` its exponent. X is clamped to [-127, 127]. An element saturates if it exceeds max
/// * 2^X.
///   round_up  smallest X with amax <= max * 2^X (arXiv 2506.08027, algorithm 1): nothing saturates
///   floor     floor(log2(amax)) - emax (OCP v1.0): the top of a binade saturates
///   ceil      ceil(log2(amax)) - emax (torchao)
///   even      floor(log2(amax rounded to the format's mantissa bits, ties up)) - emax (torchao)
enum class ScaleMode { kRoundUp, kFloor, kCeil, kEven };

/// Treatment of a block with a NaN or an infinity.
///   poison    The scale is 255 and all codes are 0, so all elements are NaN when dequantized.
///   saturate  NaN and infinity become the largest magnitude with their sign. The scale
///             follows from the finite elements.
enum class NonFinite { kPoison, kSaturate };

enum class Rounding { kNearestEven, kStochastic };

const ElementSpec& element_spec(Format format);
float largest_number(Format format);

/// Returns the `addend` to pass to `scale_byte` (codec.h), so that it follows the rule `mode`.
uint32_t scale_addend(const ElementSpec& spec, ScaleMode mode);

/// Returns the smallest exponent X of a scale 2^X under which every code of `format` is exact in
/// bfloat16. Under smaller scales, dequantizing to bfloat16 rounds, because bfloat16 has no numbers
/// below 2^-133. Float32 is exact under every scale.
int smallest_exact_bfloat16_exponent(Format format);

/// Returns the name in configs and messages. Formats: "e4m3", "e5m2", "e3m2", "e2m3", "e2m1",
/// "mxint8". Scale modes: "round_up", "floor", "ceil", "even". Treatments of non-finite numbers:
/// "poison", "saturate". Roundings: "nearest_even", "stochastic".
std::string_view name(Format format);
std::string_view name(ScaleMode mode);
std::string_view name(NonFinite non_finite);
std::string_view name(Rounding rounding);

/// Inverse of name(), for names in upper or lower case. Throws UserError for another name, listing
/// the valid names.
Format parse_format(std::string_view text);
ScaleMode parse_scale_mode(std::string_view text);
NonFinite parse_non_finite(std::string_view text);
Rounding parse_rounding(std::string_view text);

}  // namespace dovetail::mx
