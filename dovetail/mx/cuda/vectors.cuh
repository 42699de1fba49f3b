#pragma once

#include <algorithm>

#include "dovetail/mx/cuda/launch.h"
#include "dovetail/mx/encoder.h"

/// Distribution of work for kernels in which each thread reads and writes vectors. A vector is 16
/// bytes: kWidth neighbouring elements. Each row of the matrix must consist of whole blocks of 32.
namespace dovetail::mx::cuda {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
/// Number of vectors per thread. A tile has kWarps warps with kRows rows each, so it has 32 rows.
constexpr int kRows = kBlock / kWarps;
constexpr unsigned kAll = 0xffffffff;

/// Position of a thread's kRows vectors in the matrix.
struct Place {
  int64_t index, stride;  ///< first element, and distance from vector to vector, in elements
  int count;  ///< number of vectors inside the matrix; the vectors after them are outside
};

/// Returns the position of the calling thread's vectors if the matrix is read as one long row.
/// Vectors of neighbouring lanes of a warp are neighbours in memory.
template <int kWidth>
__device__ Place flat_place(int64_t elements) {
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t index = (warp * kRows * 32 + threadIdx.x % 32) * kWidth;
  int count = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) count += index + r * 32 * kWidth < elements;
  return {index, 32 * kWidth, count};
}

/// Tile of 32 rows by 32 vectors, the work of one thread block.
struct Tile {
  int64_t top, left;  ///< first row and column of the tile
  int warp, lane;     ///< the calling thread's warp in the block, and its lane in the warp
  /// Returns the position of this thread's vectors: one in each of kRows consecutive rows.
  template <int kWidth>
  __device__ Place place(int64_t rows, int64_t cols) const {
    const int64_t row = top + kRows * warp, col = left + kWidth * lane;
    const int64_t count = col < cols ? rows - row : 0;
    return {row * cols + col, cols,
            static_cast<int>(count < 0       ? 0
                             : count < kRows ? count
                                             : kRows)};
  }
};
/// Returns the tile of the calling thread block.
template <int kWidth>
__device__ Tile find_tile(int64_t cols) {
  constexpr int64_t kTileCols = 32 * kWidth;
  const int64_t across = (cols + kTileCols - 1) / kTileCols;
  return {blockIdx.x / across * kBlock, blockIdx.x % across * kTileCols,
          static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32)};
}

/// Returns the number of thread blocks for a kernel that uses `flat_place`.
template <int kWidth>
unsigned flat_blocks(int64_t elements) {
  constexpr int64_t kEach = int64_t{kThreads} * kRows * kWidth;
  return static_cast<unsigned>((elements + kEach - 1) / kEach);
}
/// Returns the number of thread blocks for a kernel that uses `find_tile`.
template <int kWidth>
unsigned tile_blocks(int64_t rows, int64_t cols) {
  constexpr int64_t kTileCols = 32 * kWidth;
  return static_cast<unsigned>((rows + kBlock - 1) / kBlock * ((cols + kTileCols - 1) / kTileCols));
}

/// Returns the scale 2^(byte - 127), which is subnormal for byte 0.
__device__ inline float scale_of(uint32_t byte) {
  return __uint_as_float(max(byte << bits::kFractionBits, 1u << 22));
}
/// Returns the inverse scale 2^(127 - byte), which is subnormal for byte 254.
__device__ inline float inverse_of(uint32_t byte) {
  const int field = kLargestScale - static_cast<int>(byte);
  return __int_as_float(max(field * (1 << bits::kFractionBits), 1 << 22));
}

/// Packs two numbers as bfloat16, the first in the low half.
__device__ inline uint32_t pack_bfloat16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Packs kWidth numbers into 16 bytes: 4 as float32, or 8 as bfloat16.
template <int kWidth>
__device__ uint4 pack(const float (&x)[kWidth]) {
  if constexpr (kWidth == 4)
    return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
            __float_as_uint(x[3])};
  else
    return {pack_bfloat16(x[0], x[1]), pack_bfloat16(x[2], x[3]), pack_bfloat16(x[4], x[5]),
            pack_bfloat16(x[6], x[7])};
}

inline bool is_aligned(const void* memory, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(memory) % bytes == 0;
}

}  // namespace dovetail::mx::cuda
