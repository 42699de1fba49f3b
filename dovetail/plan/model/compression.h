#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "dovetail/mx/format.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// A packed form that the executor can make: microscaling codes, a byte an element, and after them
/// an E8M0 scale for each block of 32 (mx/quantize.h). A block with a NaN or an infinity comes back
/// as NaN.
struct PackedForm {
  at::ScalarType dtype = at::kFloat;  ///< of the elements: float32 or bfloat16
  mx::Format format = mx::Format::kE4M3;
  mx::ScaleMode scale_mode = mx::ScaleMode::kRoundUp;
  /// 0: blocks are 32 elements that follow one another in the storage, of which the last may be
  /// short. Else the storage is a matrix of so many columns, and blocks are 32 rows of one of them;
  /// its rows are a multiple of 32.
  int64_t columns = 0;
  bool operator==(const PackedForm&) const = default;
};

/// "e4m3.round_up.float32", "e4m3.round_up.columns64.float32".
std::string name(const PackedForm& form);

/// Bytes of `elements` packed: as many, and one for each block.
int64_t packed_bytes(int64_t elements);

/// `elements` at `from` into packed_bytes at `to`, and back: dequantize(quantize(x)), bit for bit.
void pack(const PackedForm& form, const std::byte* from, int64_t elements, std::byte* to);
void unpack(const PackedForm& form, const std::byte* from, int64_t elements, std::byte* to);

/// What an element that went through E4M3 with scales rounded up may be off by, as a share of the
/// largest magnitude in its block: half the distance of its numbers, which is an eighth of their
/// binade's lower end. Not so in a block below 2^-118, where the scale cannot follow.
inline constexpr double kLargestError = 0x1p-4;

/// Elements in a block.
inline constexpr int64_t kBlock = 32;

/// The codec as a plan counts with it; how fast it packs and unpacks is not measured yet. With a
/// `max_error` of 0 it is named "e4m3.round_up.float32.same_codes".
Codec codec_of(const PackedForm& form, double max_error);

/// Bytes a second of packing and unpacking into `codec`: medians of `rounds` over a tensor of
/// `bytes`.
void measure(const PackedForm& form, int64_t bytes, int rounds, Codec& codec);

}  // namespace dovetail::plan
