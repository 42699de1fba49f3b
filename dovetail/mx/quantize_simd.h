#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "dovetail/mx/codec.h"
#include "dovetail/mx/statistics.h"
#include "dovetail/ops/activation_simd.h"

/// CPU kernels of quantize.h. Sources that include this header use neither ATen nor the precompiled
/// header.
namespace dovetail::mx {

/// Number format of the tensor to be quantized.
enum class Source { kFloat32, kBFloat16, kFloat16 };

/// Converts float16 bits to float32 bits. The conversion is exact.
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

/// Results for one orientation of blocks (row, column or square): scales, and either codes or
/// values. Values are dequantized numbers in x's dtype (not float16). Codes and values are (rows,
/// cols). If all pointers are null, the orientation is not requested.
struct QuantizeTarget {
  uint8_t* codes = nullptr;
  uint8_t* scales = nullptr;
  void* values = nullptr;
  DOVETAIL_HOST_DEVICE bool wanted() const { return codes || values; }
};

/// Problem of quantizing x (rows, cols), contiguous. Row and column targets may be requested
/// together; x is then read once. The square target must be requested alone.
struct QuantizeProblem {
  int64_t rows = 0, cols = 0;
  Source source = Source::kFloat32;
  const void* x = nullptr;
  /// CPU only: row of the matrix that is first in the memory `x`. It is above 0 if `x` holds only
  /// some rows.
  int64_t first_row = 0;
  ElementSpec spec = {};             ///< constants of the element format
  uint32_t addend = 0;               ///< constant of the scale mode, for `scale_byte` (codec.h)
  bool saturate_non_finite = false;  ///< true: NonFinite::kSaturate; false: NonFinite::kPoison
  bool stochastic = false;           ///< true: stochastic rounding; false: to nearest even
  bool by_codec = false;             ///< encode all blocks element by element with codec.h
  uint64_t seed = 0;                 ///< seed of stochastic rounding
  /// Store codes past the caches. Meant for codes that do not fit in the caches. Memory lines are
  /// then not read before they are overwritten.
  bool stream = false;
  /// GPU only: the matrix to be quantized is this activation of x, not x. Requires
  /// `fuses_activation`. x is (rows, cols), for SwiGLU (rows, 2 * cols) with gate, then up.
  std::optional<ops::Activation> activation = {};
  QuantizeTarget row;     ///< blocks 1 x 32; scales (rows, ceil(cols / 32))
  QuantizeTarget column;  ///< blocks 32 x 1; scales (ceil(rows / 32), cols)
  QuantizeTarget square;  ///< blocks 32 x 32; scales (ceil(rows / 32), ceil(cols / 32))
};

/// Returns true if a GPU quantizes at memory bandwidth, by `quantize_vectors` (mx/cuda/launch.h).
/// It requires rounding to nearest, NonFinite::kPoison, rows of whole blocks, and aligned memory.
bool fits_vectors(const QuantizeProblem& problem);
/// Returns true if a GPU can quantize an activation of x without storing it, given a problem
/// without `activation`. It requires `fits_vectors` and values in bfloat16 of one orientation.
bool fuses_activation(const QuantizeProblem& problem);

/// Statistics of each target. They are empty for a target that was not requested.
struct QuantizeCounts {
  Statistics row, column, square;
  void add(const QuantizeCounts& other);
};

/// Function that computes rows [row, row + rows) of x and writes them to `to`, contiguous.
using RowMaker = std::function<void(int64_t row, int64_t rows, void* to)>;

/// Matrix to quantize. If `make` is given, `problem.x` is not read. Each thread then computes a few
/// rows at a time with `make`, and they stay in its L2 cache.
struct QuantizeCall {
  QuantizeProblem problem;
  RowMaker make = {};
};

/// Quantizes matrices on all threads. A thread goes from one matrix to the next without waiting for
/// other threads. Returns the statistics of each matrix. The results, including the sums in
/// `QuantizeCounts`, do not depend on the number of threads or on the other matrices.
std::vector<QuantizeCounts> quantize_blocks(std::span<const QuantizeCall> calls);
/// Quantizes one matrix.
QuantizeCounts quantize_blocks(const QuantizeProblem& problem, const RowMaker& make = {});

/// Piece of a matrix, the unit of work of a thread: rows [row, row + rows) and columns [col, col +
/// cols).
struct PieceRange {
  int64_t row, rows, col, cols;
};

/// Calls visit(index, column) for each element of a piece. `index` is the row-major index in the
/// matrix, which has `cols` columns. `column` counts from the first column of the piece.
template <class Visit>
void for_each_element(int64_t cols, PieceRange piece, Visit visit) {
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    for (int64_t col = 0; col < piece.cols; ++col) visit(row * cols + piece.col + col, col);
  }
}

/// Maximum number of columns of a piece for column or square blocks. With up to 32 rows, a piece
/// then has at most 256 KiB in float32. It stays in the L2 cache from one orientation to the next.
/// For row blocks alone, a piece may have more columns, but not more elements. Pieces of
/// float8_simd.h have at most this number of columns, too.
constexpr int64_t kPieceColumns = 2048;

/// Quantizes one block of any shape with codec.h alone. The vector kernels call it for blocks with
/// subnormal or non-finite numbers, which they cannot quantize exactly. `scale` points to the
/// block's scale byte, which is written.
void quantize_exactly(const QuantizeProblem& problem, PieceRange block,
                      const QuantizeTarget& target, uint8_t* scale, Statistics& statistics);

/// Quantizes every block of a piece for every target with codec.h. Used on processors without
/// vector instructions, and if `problem.by_codec` is set.
void quantize_piece_exactly(const QuantizeProblem& problem, PieceRange piece,
                            QuantizeCounts& counts);

/// Problem of dequantizing codes (rows, cols), contiguous, in blocks of row_block x col_block.
/// Scales are (ceil(rows / row_block), ceil(cols / col_block)), as bytes or as float32. With bytes,
/// a block has 32 or 1 rows and columns; with float32, 128, 1 or all (float8.h).
struct DequantizeProblem {
  int64_t rows = 0, cols = 0;
  int64_t row_block = 1, col_block = kBlock;
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  const float* float_scales = nullptr;  ///< in place of `scales`
  ElementSpec spec = {};
};
/// Writes the dequantized numbers, (rows, cols), to y.
void dequantize_blocks(const DequantizeProblem& problem, float* y);
void dequantize_blocks(const DequantizeProblem& problem, uint16_t* y);  ///< y: bfloat16 bits

}  // namespace dovetail::mx
