#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "dovetail/mx/format.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// Format in which a storage is kept compressed. The compressed bytes are microscaling codes (one
/// byte per element), then E8M0 scales (one byte per block of 32 elements). See mx/quantize.h. A
/// block with a NaN or an infinity unpacks to NaN.
struct PackedForm {
  at::ScalarType dtype = at::kFloat;      ///< type of the unpacked elements: float32 or bfloat16
  mx::Format format = mx::Format::kE4M3;  ///< number format of the codes
  mx::ScaleMode scale_mode = mx::ScaleMode::kRoundUp;  ///< rounding of the scales
  /// If 0, a block is 32 consecutive elements of the storage, and the last block may be shorter.
  /// Otherwise the storage is a matrix with this number of columns, and a block is 32 rows of one
  /// column. The number of rows is then a multiple of 32.
  int64_t columns = 0;
  bool operator==(const PackedForm&) const = default;
};

/// Returns the name of a form. Examples: "e4m3.round_up.float32",
/// "e4m3.round_up.columns64.float32".
std::string name(const PackedForm& form);

/// Returns the packed size of `elements` elements: one byte per element and one per block.
int64_t packed_bytes(int64_t elements);

/// Packs `elements` elements at `from` into packed_bytes(elements) bytes at `to`. Packing and
/// unpacking give the same bits as dequantize(quantize(x)).
void pack(const PackedForm& form, const std::byte* from, int64_t elements, std::byte* to);
/// Unpacks `elements` elements from the packed bytes at `from` to `to`.
void unpack(const PackedForm& form, const std::byte* from, int64_t elements, std::byte* to);

/// Maximum error of an element, as a fraction of the largest magnitude in the element's block. It
/// holds for packing as E4M3 with scales rounded up. Reasons for 2^-4:
/// - Neighbouring E4M3 values differ by an eighth of the power of two at or below them.
/// - Rounding is off by at most half of this difference.
///
/// The bound does not hold in a block with a maximum below 2^-118, where the scale reaches its
/// minimum.
inline constexpr double kLargestError = 0x1p-4;

/// Number of elements in a block. They share a scale.
inline constexpr int64_t kBlock = 32;

/// Returns the codec of a form, for a graph (plan/model/graph.h). `max_error` becomes
/// Codec::max_error. If it is 0, the name of the codec ends in ".same_codes". Example:
/// "e4m3.round_up.float32.same_codes". The rates are set later, by `measure`.
Codec codec_of(const PackedForm& form, double max_error);

/// Measures the rates of packing and unpacking on a tensor of `bytes` bytes. Stores them in
/// `codec`, in bytes of the unpacked tensor per second. Each rate is the median of `rounds`
/// measurements.
void measure(const PackedForm& form, int64_t bytes, int rounds, Codec& codec);

}  // namespace dovetail::plan
