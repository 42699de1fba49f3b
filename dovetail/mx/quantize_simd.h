#pragma once

#include <cstdint>
#include <functional>

#include "dovetail/mx/codec.h"
#include "dovetail/mx/statistics.h"

/// CPU kernels of quantize.h. They know neither ATen nor the precompiled header.
namespace dovetail::mx {

enum class Source { kFloat32, kBFloat16, kFloat16 };

/// Converts float16 bits to float32 bits. Every float16 is a float32 number.
DOVETAIL_HOST_DEVICE constexpr uint32_t widen_float16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, field = half >> 10 & 31,
                 low = half & 0x3ff;
  if (field == 31) return sign | bits::kInfinity | low << 13;
  if (field == 0) return sign | assemble(low, -24);
  return sign | (field + 127 - 15) << bits::kFractionBits | low << 13;
}
/// Returns element `index` of x as float32 bits.
DOVETAIL_HOST_DEVICE inline uint32_t load_bits(Source source, const void* x, int64_t index) {
  switch (source) {
    case Source::kFloat32:
      return static_cast<const uint32_t*>(x)[index];
    case Source::kBFloat16:
      return static_cast<uint32_t>(static_cast<const uint16_t*>(x)[index]) << 16;
    case Source::kFloat16:
      return widen_float16(static_cast<const uint16_t*>(x)[index]);
  }
  return 0;
}

/// Outputs of one orientation: scales, and either codes (rows, cols) or dequantized numbers in x's
/// dtype (not float16). All null: not requested.
struct QuantizeTarget {
  uint8_t* codes = nullptr;
  uint8_t* scales = nullptr;
  void* values = nullptr;
  DOVETAIL_HOST_DEVICE bool wanted() const { return codes || values; }
};

/// Quantizes x (rows, cols), contiguous. Row and column targets may be requested together, from one
/// read of x. The square target is requested alone.
struct QuantizeProblem {
  int64_t rows = 0, cols = 0;
  Source source = Source::kFloat32;
  const void* x = nullptr;
  int64_t first_row = 0;  ///< row at which x begins, on the CPU
  ElementSpec spec = {};
  uint32_t addend = 0;  ///< constant of the scale mode, see `scale_byte`
  bool saturate_non_finite = false;
  bool stochastic = false;
  bool by_codec = false;  ///< use the codec for all blocks
  uint64_t seed = 0;
  /// Codes bypass the caches, since they would not fit. So no line is read before it is
  /// overwritten.
  bool stream = false;
  QuantizeTarget row;     ///< blocks 1 x 32; scales (rows, ceil(cols / 32))
  QuantizeTarget column;  ///< blocks 32 x 1; scales (ceil(rows / 32), cols)
  QuantizeTarget square;  ///< blocks 32 x 32; scales (ceil(rows / 32), ceil(cols / 32))
};

struct QuantizeCounts {
  Statistics row, column, square;
  void add(const QuantizeCounts& other);
};

/// Writes rows [row, row + rows) of x to `to`, contiguous.
using RowMaker = std::function<void(int64_t row, int64_t rows, void* to)>;

/// Quantizes on all threads. The result, including the sums in `QuantizeCounts`, does not depend on
/// the number of threads. With `make` there is no x: each thread makes a few rows at a time, which
/// stay in its L2 cache.
QuantizeCounts quantize_blocks(const QuantizeProblem& problem, const RowMaker& make = {});

/// Rows [row, row + rows) and columns [col, col + cols) of a matrix.
struct PieceRange {
  int64_t row, rows, col, cols;
};

/// Calls visit(row-major index, column within the piece) for each element of a piece. The matrix
/// has `cols` columns.
template <class Visit>
void for_each_element(int64_t cols, PieceRange piece, Visit visit) {
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    for (int64_t col = 0; col < piece.cols; ++col) visit(row * cols + piece.col + col, col);
  }
}

/// Maximum columns of a piece, the unit of work. A piece has one row or 32 rows. 32 rows are 256
/// KiB in float32, which stay in the L2 cache from one orientation to the next.
constexpr int64_t kPieceColumns = 2048;

/// Quantizes one block of any shape with the codec alone. For blocks that the vector kernels cannot
/// do exactly: those with subnormal or non-finite numbers. `scale` points to the block's scale
/// byte.
void quantize_exactly(const QuantizeProblem& problem, PieceRange block,
                      const QuantizeTarget& target, uint8_t* scale, Statistics& statistics);

/// Quantizes every block of a piece for every target with the codec. For processors without
/// vectors, or if the kernels are switched off.
void quantize_piece_exactly(const QuantizeProblem& problem, PieceRange piece,
                            QuantizeCounts& counts);

/// Codes (rows, cols), contiguous, in blocks of row_block x col_block (32 or 1 each). Scales
/// (ceil(rows / row_block), ceil(cols / col_block)).
struct DequantizeProblem {
  int64_t rows = 0, cols = 0;
  int64_t row_block = 1, col_block = kBlock;
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  ElementSpec spec = {};
};
void dequantize_blocks(const DequantizeProblem& problem, float* y);
void dequantize_blocks(const DequantizeProblem& problem, uint16_t* y);  ///< y: bfloat16 bits

}  // namespace dovetail::mx
