#pragma once

#include <cstdint>

namespace dovetail::mx {

/// Problem of making FP8 codes of x and of its transpose from one read. Sizes are multiples of 16
/// and not 0. Pointers are aligned to 16 bytes.
struct Float8GpuProblem {
  /// Scales. kWhole: one. kLines: 1x128 blocks for codes, 128x1 blocks for transposed codes.
  /// kSquare: 128x128 blocks.
  enum class Kind { kWhole, kLines, kSquare };
  Kind kind = Kind::kWhole;
  int64_t rows = 0, cols = 0;
  bool narrow = false;  ///< true: x is bfloat16; false: float32
  const void* x = nullptr;
  bool e5m2 = false, power_of_two = false;
  float amax = 0;            ///< kWhole: amax of delayed scaling; 0: use `most`
  uint32_t* most = nullptr;  ///< kWhole: bits of the largest magnitude; `float8_amax` raises it
  uint8_t* codes = nullptr;
  uint8_t* transposed = nullptr;  ///< (cols, rows)
  /// Shapes. kLines: (col blocks, rows) and (row blocks, cols). kSquare: (row blocks, col blocks)
  /// and its transpose.
  float* scales = nullptr;
  float* column_scales = nullptr;
  int64_t scale_stride = 0, column_scale_stride = 0;
};

}  // namespace dovetail::mx
