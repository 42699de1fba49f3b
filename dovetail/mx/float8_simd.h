#pragma once

#include <cstdint>

#include "dovetail/mx/quantize_simd.h"

/// CPU kernels of float8.h. Sources that include this header use neither ATen nor the precompiled
/// header.
namespace dovetail::mx {

/// Problem of quantizing x (rows, cols), contiguous, to FP8 in blocks of row_block x col_block.
/// Each of the two block sizes is 1, 128 or the whole dimension.
struct Float8Problem {
  int64_t rows = 0, cols = 0;
  int64_t row_block = 1, col_block = 1;
  Source source = Source::kFloat32;  ///< kFloat32 or kBFloat16
  const void* x = nullptr;
  ElementSpec spec = {};      ///< constants of the format, E4M3 or E5M2
  bool power_of_two = false;  ///< round scales up to powers of two
  /// Delayed scaling: largest magnitude in earlier steps, from which the scales are computed. 0:
  /// the scale of each block is computed from the block's own largest magnitude.
  float amax = 0;
  bool by_codec = false;     ///< encode element by element with codec.h, without vectors
  uint8_t* codes = nullptr;  ///< result, (rows, cols); null if `values` is the result
  /// Result as dequantized numbers; null if `codes` is the result. Float32, or bfloat16 if x is
  /// bfloat16 and scales are powers of two.
  void* values = nullptr;
  float* scales = nullptr;  ///< result, (ceil(rows / row_block), ceil(cols / col_block))

  /// Returns true if one block covers the whole matrix.
  bool whole() const { return row_block >= rows && col_block >= cols; }
};

/// Quantizes on all threads, and returns the counts of the quantization.
Statistics quantize_float8_blocks(const Float8Problem& problem);

/// Scales of the columns of a piece. A piece is the part of x that a thread encodes at a time.
/// Elements are multiplied by `factor` before rounding. Codes are multiplied by `scale` to
/// dequantize them. `factor` is 0 in a block with a NaN or an infinity.
struct ColumnScales {
  alignas(64) float factor[kPieceColumns];
  alignas(64) float scale[kPieceColumns];
};

/// Raises most[i] to the largest magnitude of column i of the piece, as float32 bits. Used on
/// processors without vector instructions, and if `problem.by_codec` is set.
void raise_column_maxima(const Float8Problem& problem, PieceRange piece, uint32_t* most);
/// Encodes a piece element by element, without vector instructions, and adds its counts to
/// `statistics`. Used in the same cases as `raise_column_maxima`.
void encode_float8_piece(const Float8Problem& problem, PieceRange piece, const ColumnScales& scales,
                         Statistics& statistics);

}  // namespace dovetail::mx
