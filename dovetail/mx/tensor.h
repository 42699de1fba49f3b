#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dovetail/mx/format.h"

namespace dovetail::mx {

/// Elements that form a block.
///   kRow     32 neighbours along the last dimension
///   kColumn  32 neighbours along the first dimension
///   kSquare  32 x 32 elements of a matrix
enum class Orientation { kRow, kColumn, kSquare };

/// Returns "row", "column" or "square".
std::string_view name(Orientation orientation);

/// Tensor in a microscaling format. Each element has a uint8 code, and each block of 32 (or 32 x
/// 32) elements has one E8M0 scale byte. Codes have the tensor's own shape and order in each
/// orientation. A tensor with orientation kRow is called a row copy of the original, one with
/// kColumn a column copy.
class MXTensor {
 public:
  MXTensor() = default;
  /// Takes uint8 codes of any shape and uint8 scales of the shape `scale_sizes`. Both become
  /// contiguous. Throws UserError if dtypes, shapes or devices do not match.
  MXTensor(at::Tensor codes, at::Tensor scales, Format format, Orientation orientation);

  bool defined() const { return codes_.defined(); }
  const at::Tensor& codes() const { return codes_; }
  const at::Tensor& scales() const { return scales_; }
  Format format() const { return format_; }
  Orientation orientation() const { return orientation_; }
  /// Returns the sizes of the tensor that was quantized.
  at::IntArrayRef sizes() const { return codes_.sizes(); }

  /// Returns the bytes that the tensor takes in storage: the bytes of its scales, and of its codes
  /// packed by `pack_codes`.
  int64_t packed_bytes() const;

 private:
  at::Tensor codes_, scales_;
  Format format_ = Format::kE4M3;
  Orientation orientation_ = Orientation::kRow;
};

/// Returns the shape of the scales for a tensor of shape `sizes`. Throws UserError for a scalar,
/// and for square blocks if the tensor is not a matrix.
std::vector<int64_t> scale_sizes(at::IntArrayRef sizes, Orientation orientation);

/// Returns the scales of a matrix's row or column copy in the layout that native products read
/// (native.h; cuBLASLt's VEC32_UE8M0). The layout is a uint8 vector of tiles. A tile covers 128
/// rows (or columns, for a column copy) by 4 blocks. Tiles of the same rows are adjacent. The scale
/// of block b in row r of a tile is at byte 16 (r mod 32) + 4 (r / 32) + b, with b < 4 and r < 128.
/// Scales outside the matrix are 0.
at::Tensor swizzled_scales(const MXTensor& x);

/// Packs n codes (uint8, any shape) for storage, without unused bits.
/// - FP6: four codes in three bytes, little-endian. Code i of the four is in bits 6 i to 6 i + 5.
/// - FP4: two codes in a byte, the low half first.
/// - 8-bit codes are copied.
///
/// A last group with fewer codes is filled with zeros. Returns ceil(n * bits / 8) bytes.
at::Tensor pack_codes(const at::Tensor& codes, Format format);

/// Inverse of pack_codes; `sizes` is the shape of the codes. Throws UserError for negative sizes,
/// or if the number of bytes does not match.
at::Tensor unpack_codes(const at::Tensor& packed, Format format, at::IntArrayRef sizes);

}  // namespace dovetail::mx
