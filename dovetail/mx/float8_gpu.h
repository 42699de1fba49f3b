#pragma once

#include <cstdint>
#include <optional>

#include "dovetail/ops/activation_simd.h"

namespace dovetail::mx {

/// Problem of quantizing a matrix (rows, cols) and its transpose to FP8 codes (float8.h) on a GPU,
/// from one read. Rows and cols are multiples of 16 and not 0. Pointers are aligned to 16 bytes.
struct Float8GpuProblem {
  /// Elements of x that share a scale.
  ///   kWhole   all elements; `codes` and `transposed` have the same scale
  ///   kLines   1 x 128 elements for `codes`, 128 x 1 elements for `transposed`
  ///   kSquare  128 x 128 elements for both
  enum class Kind { kWhole, kLines, kSquare };
  Kind kind = Kind::kWhole;
  int64_t rows = 0, cols = 0;
  bool narrow = false;      ///< true: x is bfloat16; false: float32
  const void* x = nullptr;  ///< the matrix, or the input of `activation`
  /// The matrix is this activation of x, which must be bfloat16. The activation is rounded to
  /// bfloat16 and never stored. x is (rows, cols), for SwiGLU (rows, 2 * cols) with gate, then up.
  std::optional<ops::Activation> activation = {};
  /// `e5m2`: codes are E5M2 instead of E4M3. `power_of_two`: scales are rounded up to powers of
  /// two.
  bool e5m2 = false, power_of_two = false;
  /// kWhole only. Address of the largest magnitude of the matrix, as float32 bits. It starts at 0.
  /// `float8_amax` raises it, and with `amax`, `quantize_float8` does.
  uint32_t* most = nullptr;
  /// kWhole only. Delayed scaling: address of the largest magnitude in earlier steps, from which
  /// the scale is computed. `float8_amax` is then not needed. Elements that are not finite get the
  /// code of NaN. Null: the scale is computed from `most`.
  const float* amax = nullptr;
  uint8_t* codes = nullptr;       ///< codes of the matrix, (rows, cols); null: not wanted
  uint8_t* transposed = nullptr;  ///< codes of the transpose, (cols, rows); null: not wanted
  /// Scales of `codes` and of `transposed`, float32. Here "col blocks" is ceil(cols / 128), and
  /// "row blocks" is ceil(rows / 128).
  /// - kWhole: one number in `scales`; `column_scales` is not written.
  /// - kLines: `scales` (col blocks, rows), `column_scales` (row blocks, cols).
  /// - kSquare: `scales` (row blocks, col blocks), `column_scales` (col blocks, row blocks).
  float* scales = nullptr;
  float* column_scales = nullptr;
  /// Distances between rows of `scales` and of `column_scales`, in floats.
  int64_t scale_stride = 0, column_scale_stride = 0;
};

}  // namespace dovetail::mx
