#pragma once

#include <cstdint>

#include "dovetail/mx/quantize_simd.h"

/// The CPU kernels behind float8.h, which see neither ATen nor the precompiled header.
namespace dovetail::mx {

/// x (rows, cols) contiguous, in blocks of row_block x col_block: 1 or 128 each, or the whole.
struct Float8Problem {
  int64_t rows = 0, cols = 0;
  int64_t row_block = 1, col_block = 1;
  Source source = Source::kFloat32;  ///< or kBFloat16
  const void* x = nullptr;
  ElementSpec spec = {};
  bool power_of_two = false;
  float amax = 0;            ///< in place of the blocks' own if not 0
  bool by_codec = false;     ///< element by element
  uint8_t* codes = nullptr;  ///< this or values
  void* values = nullptr;    ///< float32, or bfloat16 for such x and power-of-two scales
  float* scales = nullptr;   ///< (ceil(rows / row_block), ceil(cols / col_block))

  bool whole() const { return row_block >= rows && col_block >= cols; }
};

Statistics quantize_float8_blocks(const Float8Problem& problem);

/// For the columns of a piece: by what to multiply before rounding (0 in a block that is not
/// finite), and after.
struct ColumnScales {
  alignas(64) float factor[kPieceColumns];
  alignas(64) float scale[kPieceColumns];
};

/// most[i] = max(most[i], |column i of the piece|), as bits of float32; for processors without
/// vectors.
void raise_column_maxima(const Float8Problem& problem, PieceRange piece, uint32_t* most);
void encode_float8_piece(const Float8Problem& problem, PieceRange piece, const ColumnScales& scales,
                         Statistics& statistics);

}  // namespace dovetail::mx
