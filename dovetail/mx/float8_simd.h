#pragma once

#include <cstdint>

#include "dovetail/mx/quantize_simd.h"

/// CPU kernels of float8.h. They know neither ATen nor the precompiled header.
namespace dovetail::mx {

/// Quantizes x (rows, cols), contiguous, in blocks of row_block x col_block. Each size is 1, 128 or
/// the whole dimension.
struct Float8Problem {
  int64_t rows = 0, cols = 0;
  int64_t row_block = 1, col_block = 1;
  Source source = Source::kFloat32;  ///< kFloat32 or kBFloat16
  const void* x = nullptr;
  ElementSpec spec = {};
  bool power_of_two = false;
  float amax = 0;            ///< replaces the blocks' own largest magnitudes if not 0
  bool by_codec = false;     ///< encode element by element with codec.h
  uint8_t* codes = nullptr;  ///< output: codes or values, the other is null
  void* values = nullptr;    ///< float32; bfloat16 if x is bfloat16 and scales are powers of two
  float* scales = nullptr;   ///< (ceil(rows / row_block), ceil(cols / col_block))

  bool whole() const { return row_block >= rows && col_block >= cols; }
};

Statistics quantize_float8_blocks(const Float8Problem& problem);

/// Factors for the columns of a piece. `factor` is applied before rounding (0 in a non-finite
/// block), `scale` after it.
struct ColumnScales {
  alignas(64) float factor[kPieceColumns];
  alignas(64) float scale[kPieceColumns];
};

/// Sets most[i] = max(most[i], |column i of the piece|), as float32 bits. For processors without
/// vector instructions.
void raise_column_maxima(const Float8Problem& problem, PieceRange piece, uint32_t* most);
void encode_float8_piece(const Float8Problem& problem, PieceRange piece, const ColumnScales& scales,
                         Statistics& statistics);

}  // namespace dovetail::mx
