#pragma once

#include <cstdint>
#include <functional>

#include "dovetail/mx/codec.h"
#include "dovetail/mx/statistics.h"

/// The CPU kernels behind quantize.h, which see neither ATen nor the precompiled header.
namespace dovetail::mx {

enum class Source { kFloat32, kBFloat16, kFloat16 };

/// The bits of the same number as float32; every float16 is one.
DOVETAIL_HOST_DEVICE constexpr uint32_t widen_float16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, field = half >> 10 & 31,
                 low = half & 0x3ff;
  if (field == 31) return sign | bits::kInfinity | low << 13;
  if (field == 0) return sign | assemble(low, -24);
  return sign | (field + 127 - 15) << bits::kFractionBits | low << 13;
}
/// Element `index` of x as the bits of a float32.
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

/// Where codes (rows, cols), or instead of them the numbers they stand for in x's dtype (not for
/// float16), and scales go; all null: not asked for.
struct QuantizeTarget {
  uint8_t* codes = nullptr;
  uint8_t* scales = nullptr;
  void* values = nullptr;
  DOVETAIL_HOST_DEVICE bool wanted() const { return codes || values; }
};

/// x (rows, cols) contiguous. Any of the first two targets together, from one read of x, or the
/// third alone.
struct QuantizeProblem {
  int64_t rows = 0, cols = 0;
  Source source = Source::kFloat32;
  const void* x = nullptr;
  int64_t first_row = 0;  ///< the row at which x begins, on the CPU
  ElementSpec spec = {};
  uint32_t addend = 0;  ///< of the scale mode, see `scale_byte`
  bool saturate_non_finite = false;
  bool stochastic = false;
  bool by_codec = false;  ///< all of it
  uint64_t seed = 0;
  bool stream = false;    ///< codes go past the caches, which they would not fit into: no line is
                          ///< read to be overwritten
  QuantizeTarget row;     ///< blocks 1 x 32; scales (rows, ceil(cols / 32))
  QuantizeTarget column;  ///< blocks 32 x 1; scales (ceil(rows / 32), cols)
  QuantizeTarget square;  ///< blocks 32 x 32; scales (ceil(rows / 32), ceil(cols / 32))
};

struct QuantizeCounts {
  Statistics row, column, square;
  void add(const QuantizeCounts& other);
};

/// Rows [row, row + rows) of x to `to`, contiguous.
using RowMaker = std::function<void(int64_t row, int64_t rows, void* to)>;

/// Quantizes on all threads. The result, the sums of `QuantizeCounts` included, does not depend on
/// their number. With `make` there is no x: each thread makes a few rows at a time, which stay in
/// its second-level cache.
QuantizeCounts quantize_blocks(const QuantizeProblem& problem, const RowMaker& make = {});

/// Rows [row, row + rows) by columns [col, col + cols).
struct PieceRange {
  int64_t row, rows, col, cols;
};

/// Calls visit(row-major index, column within the piece) for the elements of a piece of a matrix
/// with `cols` columns.
template <class Visit>
void for_each_element(int64_t cols, PieceRange piece, Visit visit) {
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    for (int64_t col = 0; col < piece.cols; ++col) visit(row * cols + piece.col + col, col);
  }
}

/// What is quantized at a time: these many columns at most, of one row or of 32; 32 rows of them
/// are a quarter of a megabyte in float32, which stays in the second-level cache from one
/// orientation to the other.
constexpr int64_t kPieceColumns = 2048;

/// One block of any shape, by the codec alone: what the vector kernels do not do exactly (blocks
/// with subnormal or non-finite numbers). `scale` is one byte, the block's.
void quantize_exactly(const QuantizeProblem& problem, PieceRange block,
                      const QuantizeTarget& target, uint8_t* scale, Statistics& statistics);

/// The same for every block of a piece and every target; where there are no vectors, or they are
/// switched off.
void quantize_piece_exactly(const QuantizeProblem& problem, PieceRange piece,
                            QuantizeCounts& counts);

/// Codes (rows, cols) contiguous, in blocks of row_block x col_block (32, or 1); scales (ceil(rows
/// / row_block), ceil(cols / col_block)).
struct DequantizeProblem {
  int64_t rows = 0, cols = 0;
  int64_t row_block = 1, col_block = kBlock;
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  ElementSpec spec = {};
};
void dequantize_blocks(const DequantizeProblem& problem, float* y);
void dequantize_blocks(const DequantizeProblem& problem, uint16_t* y);  ///< bits of bfloat16

}  // namespace dovetail::mx
