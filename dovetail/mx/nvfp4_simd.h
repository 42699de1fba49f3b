#pragma once

#include <cstdint>

#include "dovetail/mx/quantize_simd.h"

/// CPU kernels of nvfp4.h. Sources that include this header use neither ATen nor the precompiled
/// header.
namespace dovetail::mx {

/// Number of elements of a block along its axis.
constexpr int64_t kNvfp4Block = 16;

/// Problem of quantizing x (rows, cols), contiguous, to NVFP4 in blocks of row_block x col_block (1
/// or 16 each).
struct Nvfp4Problem {
  int64_t rows = 0, cols = 0;
  int64_t row_block = 1, col_block = 16;
  Source source = Source::kFloat32;  ///< kFloat32 or kBFloat16
  const void* x = nullptr;
  float tensor_scale = 1;
  bool saturate_non_finite = false;
  bool stochastic = false;
  bool by_codec = false;  ///< encode element by element with codec.h, without vectors
  uint64_t seed = 0;
  uint8_t* codes = nullptr;   ///< result, (rows, cols); null if `values` is the result
  void* values = nullptr;     ///< result in the type of x; null if `codes` is the result
  uint8_t* scales = nullptr;  ///< result, (ceil(rows / row_block), ceil(cols / col_block))
};

/// Returns the largest finite magnitude of x. It reads only rows, cols, source, x and by_codec.
float largest_finite(const Nvfp4Problem& problem);

/// Quantizes on all threads, and returns the counts of the quantization.
Statistics quantize_nvfp4_blocks(const Nvfp4Problem& problem);

/// Scales of blocks, or of the columns of a piece.
struct Nvfp4Scales {
  // Largest number of vectors' lanes by which a piece may be padded.
  static constexpr int64_t kPadding = 64;
  alignas(64) uint32_t most[kPieceColumns + kPadding];  ///< largest magnitude, as float32 bits
  alignas(64) float factor[kPieceColumns + kPadding];   ///< r of nvfp4.h; 0 in a poisoned block
  alignas(64) float scale[kPieceColumns + kPadding];    ///< number of the E4M3 scale
};

// Functions of a processor without vector instructions, also used if `problem.by_codec` is set.
// They define the results of the vector kernels.

/// Raises most[i] to the largest magnitude of column i of the piece, as float32 bits. If
/// `finite_only` is set, NaN and infinity count as 0.
void raise_nvfp4_maxima(const Nvfp4Problem& problem, PieceRange piece, bool finite_only,
                        uint32_t* most);
/// Chooses factor and scale of `blocks` blocks by their `most`, writes the E4M3 codes of the scales
/// to `bytes`, and counts the blocks.
void choose_nvfp4_scales(const Nvfp4Problem& problem, Nvfp4Scales& scales, int64_t blocks,
                         uint8_t* bytes, Statistics& statistics);
/// Encodes a piece and adds underflows, saturations and energies to `statistics`.
void encode_nvfp4_piece(const Nvfp4Problem& problem, PieceRange piece, const Nvfp4Scales& columns,
                        Statistics& statistics);

// The same functions in vectors.
void raise_nvfp4_maxima_vectors(const Nvfp4Problem& problem, PieceRange piece, bool finite_only,
                                uint32_t* most);
void choose_nvfp4_scales_vectors(const Nvfp4Problem& problem, Nvfp4Scales& scales, int64_t blocks,
                                 uint8_t* bytes, Statistics& statistics);
void encode_nvfp4_piece_vectors(const Nvfp4Problem& problem, PieceRange piece,
                                const Nvfp4Scales& columns, Statistics& statistics);

/// Writes H D v to `to` for each column v of 16 rows of x (nvfp4.h). `rows` (at most 16) are there;
/// the others count as zeros. Columns [begin, end). Bit i of `signs` is set if D negates row i.
struct HadamardRows {
  Source source = Source::kFloat32;
  const void* x = nullptr;  ///< (rows, cols)
  int64_t rows = 0, cols = 0;
  uint32_t signs = 0;
  float* to = nullptr;  ///< (16, cols)
};
void transform_hadamard(const HadamardRows& problem, int64_t begin, int64_t end);
/// Does the same with vectors.
void transform_hadamard_vectors(const HadamardRows& problem, int64_t begin, int64_t end);

}  // namespace dovetail::mx
