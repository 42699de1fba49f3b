#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dovetail/mx/format.h"

namespace dovetail::mx {

/// How a block of 32 lies in a tensor: along its last dimension, along its first, or 32 x 32 of a
/// matrix.
enum class Orientation { kRow, kColumn, kSquare };

/// "row", "column", "square".
std::string_view name(Orientation orientation);
/// The inverse. Throws UserError for another name.
Orientation parse_orientation(std::string_view text);

/// A tensor in a microscaling format: one uint8 code for each element, in the tensor's own shape
/// and order whatever the orientation, and one E8M0 scale byte for each block.
class MXTensor {
 public:
  MXTensor() = default;
  /// codes (...) uint8 contiguous; scales uint8 of `scale_sizes`. Throws UserError when they do not
  /// fit.
  MXTensor(at::Tensor codes, at::Tensor scales, Format format, Orientation orientation);

  bool defined() const { return codes_.defined(); }
  const at::Tensor& codes() const { return codes_; }
  const at::Tensor& scales() const { return scales_; }
  Format format() const { return format_; }
  Orientation orientation() const { return orientation_; }
  at::IntArrayRef sizes() const { return codes_.sizes(); }  ///< of the tensor it stands for

  /// Bytes of codes as stored by `pack_codes`, and of scales.
  int64_t packed_bytes() const;

 private:
  at::Tensor codes_, scales_;
  Format format_ = Format::kE4M3;
  Orientation orientation_ = Orientation::kRow;
};

/// Sizes of the scales of a tensor of `sizes`; throws UserError for a scalar, or for square blocks
/// of no matrix.
std::vector<int64_t> scale_sizes(at::IntArrayRef sizes, Orientation orientation);

/// Scales of a matrix's row or column copy in the layout that native products read (cuBLASLt's
/// VEC32_UE8M0): a uint8 vector of tiles, one for 128 rows (columns of a column copy) by 4 blocks,
/// tiles of the same rows together. Scale (r, b) of a tile is at 16 (r mod 32) + 4 (r / 32) + b;
/// beyond the matrix they are 0.
at::Tensor swizzled_scales(const MXTensor& x);

/// Codes (any shape, n of them) for storage: FP6 four codes in three bytes, little-endian (code i
/// in bits 6 i to 6 i + 5 of its group), FP4 two in a byte, the low half first; 8-bit codes as they
/// are. The last group is filled up with zeros: ceil(n * bits / 8) bytes.
at::Tensor pack_codes(const at::Tensor& codes, Format format);

/// The inverse; `sizes` is the shape of the codes. Throws UserError for sizes below zero, and when
/// the bytes are too few or too many.
at::Tensor unpack_codes(const at::Tensor& packed, Format format, at::IntArrayRef sizes);

}  // namespace dovetail::mx
