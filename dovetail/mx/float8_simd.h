#pragma once

#include <cstdint>

#include "dovetail/mx/quantize_simd.h"

/// CPU kernels of float8.h. Sources that include this header use neither ATen nor the precompiled
/// header.
namespace dovetail::mx {

/// Results for one kind of blocks. A null pointer is not requested.
struct Float8Target {
  uint8_t* codes = nullptr;  ///< (rows, cols)
  void* values = nullptr;    ///< dequantized numbers, (rows, cols)
  bool wide_values = false;  ///< true: values are float32; false: they have x's dtype
  bool unscaled = false;     ///< values are not multiplied by their scale
  float* scales = nullptr;   ///< one per block, row-major
  bool wanted() const { return codes || values; }
};

/// Maximum number of columns of a piece, a multiple of 128.
constexpr int64_t kFloat8PieceColumns = 2048;

/// Problem of quantizing x (rows, cols), contiguous, to FP8. Row and column targets may be
/// requested together; x is then read once. Other targets must be requested alone.
struct Float8Problem {
  int64_t rows = 0, cols = 0;
  Source source = Source::kFloat32;  ///< kFloat32 or kBFloat16
  const void* x = nullptr;
  ElementSpec spec = {};      ///< constants of the format, E4M3 or E5M2
  bool power_of_two = false;  ///< round scales up to powers of two
  /// Delayed scaling, for `whole` only: largest magnitude in earlier steps, from which the scale is
  /// computed. 0: the scale of each block is computed from the block's own largest magnitude.
  float amax = 0;
  bool by_codec = false;  ///< encode element by element with codec.h, without vectors
  Float8Target row;       ///< blocks 1 x 128; scales (rows, ceil(cols / 128))
  Float8Target column;    ///< blocks 128 x 1; scales (ceil(rows / 128), cols)
  Float8Target square;    ///< blocks 128 x 128; scales (ceil(rows / 128), ceil(cols / 128))
  Float8Target whole;     ///< one block; one scale
};

/// Quantizes on all threads. Returns the counts of the quantization. If row and column targets are
/// requested together, they are the counts of the row target.
Statistics quantize_float8_blocks(const Float8Problem& problem);

/// Scale of a block. Elements are multiplied by `factor` before rounding. Codes are multiplied by
/// `scale` to dequantize them. `factor` is 0 in a block with a NaN or an infinity.
struct Float8Scale {
  float factor, scale;
};

/// Returns the scale of a block whose largest magnitude is `most`, as float32 bits. Counts the
/// block, unless `statistics` is null.
Float8Scale choose_float8_scale(const Float8Problem& problem, uint32_t most,
                                Statistics* statistics);
/// Returns the largest magnitude of a block, as float32 bits, without vector instructions.
uint32_t float8_maximum(const Float8Problem& problem, PieceRange block);
/// Encodes a block element by element, without vector instructions. Adds its counts to
/// `statistics`, unless it is null. The vector kernels call it for blocks with a NaN or an
/// infinity.
void encode_float8_exactly(const Float8Problem& problem, PieceRange block,
                           const Float8Target& target, Float8Scale scale, Statistics* statistics);
/// Quantizes a piece of whole blocks, without vector instructions. Not for `problem.whole`.
void quantize_float8_exactly(const Float8Problem& problem, PieceRange piece,
                             Statistics& statistics);

}  // namespace dovetail::mx
