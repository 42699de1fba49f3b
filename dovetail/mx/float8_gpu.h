#pragma once

#include <cstdint>

namespace dovetail::mx {

/// FP8 codes of x and of its transpose from one read. Sizes are multiples of 16 and not 0, pointers
/// aligned to 16 bytes.
struct Float8GpuProblem {
  /// Scales: one; of 1x128 for codes and of 128x1 for transposed codes; of 128x128.
  enum class Kind { kWhole, kLines, kSquare };
  Kind kind = Kind::kWhole;
  int64_t rows = 0, cols = 0;
  bool narrow = false;  ///< x is bfloat16, not float32
  const void* x = nullptr;
  bool e5m2 = false, power_of_two = false;
  float amax = 0;            ///< kWhole: of delayed scaling; 0: `most`
  uint32_t* most = nullptr;  ///< kWhole: bits of the largest magnitude; `float8_amax` raises it
  uint8_t* codes = nullptr;
  uint8_t* transposed = nullptr;  ///< (cols, rows)
  /// kLines: (col blocks, rows) and (row blocks, cols); kSquare: (row blocks, col blocks) and its
  /// transpose.
  float* scales = nullptr;
  float* column_scales = nullptr;
  int64_t scale_stride = 0, column_scale_stride = 0;
};

}  // namespace dovetail::mx
