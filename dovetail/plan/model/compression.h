#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "dovetail/mx/format.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// Packed form of a storage that the executor can create. It has microscaling codes, one byte per
/// element, followed by one E8M0 scale per block of 32 elements (mx/quantize.h). A block with a NaN
/// or an infinity unpacks to NaN.
struct PackedForm {
  at::ScalarType dtype = at::kFloat;  ///< float32 or bfloat16
  mx::Format format = mx::Format::kE4M3;
  mx::ScaleMode scale_mode = mx::ScaleMode::kRoundUp;
  /// If 0, a block is 32 consecutive elements of the storage, and the last block may be shorter.
  /// Otherwise the storage is a matrix with this number of columns, and a block is 32 rows of one
  /// column. The number of rows is then a multiple of 32.
  int64_t columns = 0;
  bool operator==(const PackedForm&) const = default;
};

/// Name of a form: "e4m3.round_up.float32", "e4m3.round_up.columns64.float32".
std::string name(const PackedForm& form);

/// Bytes of `elements` in packed form: one per element and one per block.
int64_t packed_bytes(int64_t elements);

/// Packs `elements` at `from` into packed_bytes at `to`, or unpacks them. A round trip equals
/// dequantize(quantize(x)) bit for bit.
void pack(const PackedForm& form, const std::byte* from, int64_t elements, std::byte* to);
void unpack(const PackedForm& form, const std::byte* from, int64_t elements, std::byte* to);

/// Maximum error of an element after E4M3 with scales rounded up, relative to the largest magnitude
/// in its block. It is half the distance between neighbouring E4M3 values. That distance is an
/// eighth of the lower end of their binade. The bound does not hold in a block below 2^-118, where
/// the scale reaches its minimum.
inline constexpr double kLargestError = 0x1p-4;

/// Elements per block.
inline constexpr int64_t kBlock = 32;

/// Codec of a form, for planning. `measure` sets its rates later. If `max_error` is 0, its name
/// gets a suffix: "e4m3.round_up.float32.same_codes".
Codec codec_of(const PackedForm& form, double max_error);

/// Measures packing and unpacking and stores both rates in `codec`, in bytes per second. The rates
/// are medians of `rounds` over a tensor of `bytes`.
void measure(const PackedForm& form, int64_t bytes, int rounds, Codec& codec);

}  // namespace dovetail::plan
