#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "dovetail/mx/cuda/float8.h"
#include "dovetail/ops/cuda/activation.cuh"

// Rounds like float8_simd.cpp: multiply, saturate, round to nearest even, all in float32.
//
// Memory traffic bounds each kernel. Bytes an element of bfloat16 with one scale a tensor: 2 to
// find the amax, 2 to read, 1 for each copy of codes. Delayed scaling needs no pass for the amax.
// An activation is computed while its input is read, and its result is never stored. Storing and
// reading it would be 4 bytes more.
namespace dovetail::mx::cuda {
namespace {

constexpr int kTile = 128, kThreads = 512, kSide = 16;
/// Rows of a thread in a tile. Thread t has rows 2 (t / 8) and the next, and columns 16 (t % 8) to
/// 16 (t % 8) + 15.
constexpr int kRows = 2;
constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
/// Code of NaN, in E4M3 and in E5M2.
constexpr uint32_t kNanCode = 0x7f;

/// Converts 8 bfloat16 numbers to float32 bits.
__device__ void widen(const uint4& v, uint32_t* to) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    to[2 * j] = words[j] << 16;
    to[2 * j + 1] = words[j] & 0xffff0000;
  }
}

/// Reader of x itself, in bfloat16.
struct Plain {
  static __device__ uint4 load(const void* x, int64_t index, int64_t) {
    return *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(x) + index);
  }
};
/// Reader of x itself, in float32.
struct PlainFloat32 {};

/// Loads 16 neighbours of the matrix as float32 bits, from memory aligned to 16 bytes.
template <class Reader>
__device__ void load(const Float8GpuProblem& p, int64_t index, uint32_t (&to)[kSide]) {
  if constexpr (std::is_same_v<Reader, PlainFloat32>) {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const uint32_t*>(p.x) + index);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = from[i];
      to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSide; i += 8) widen(Reader::load(p.x, index + i, p.cols), to + i);
  }
}

/// Finds the largest magnitude in one read of rows x cols. The maximum does not depend on the
/// order.
template <class Reader>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(const __grid_constant__ Float8GpuProblem p) {
  const int64_t groups = p.rows * p.cols / kSide, step = static_cast<int64_t>(gridDim.x) * kThreads;
  uint32_t most = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < groups;
       i += step) {
    uint32_t x[kSide];
    load<Reader>(p, i * kSide, x);
#pragma unroll
    for (int j = 0; j < kSide; ++j) most = max(most, x[j] & kMagnitude);
  }
  most = __reduce_max_sync(0xffffffff, most);
  if (threadIdx.x % 32 == 0) atomicMax(p.most, most);
}

struct Scale {
  float factor, scale;
};

__device__ Scale choose_scale(const Float8GpuProblem& p, uint32_t most) {
  if (most >= kInfinity) return {0, __uint_as_float(0x7fc00000)};
  const float amax = __uint_as_float(most);
  float factor = __fdiv_rn(p.e5m2 ? 57344.0F : 448.0F, fmaxf(amax, 0x1p-80F));
  if (p.power_of_two) factor = __uint_as_float(__float_as_uint(factor) & kInfinity);
  return {factor, __fdiv_rn(1.0F, factor)};
}

/// Returns the code of an element; 0 if the block's factor is 0, because the block is not finite.
/// Only with delayed scaling may x be infinite or NaN otherwise.
__device__ uint32_t encode(uint32_t x, float factor, __nv_fp8_interpretation_t format) {
  if (factor == 0) return 0;
  if ((x & kMagnitude) >= kInfinity) return kNanCode;
  return __nv_cvt_float_to_fp8(__fmul_rn(__uint_as_float(x), factor), __NV_SATFINITE, format);
}

/// Quantizes one tile of 128 x 128. Bytes an element: 2 or 4 read, 2 written, each in accesses of
/// 16 bytes. Codes are transposed in shared memory. Chunks of 16 rows are permuted by column there,
/// to avoid bank conflicts.
template <class Reader, Float8GpuProblem::Kind kKind>
__global__ void __launch_bounds__(kThreads, 2)
    quantize_kernel(const __grid_constant__ Float8GpuProblem p) {
  __shared__ __align__(16) uint8_t transposed[kTile * kTile];
  __shared__ uint32_t most_of[kTile];
  __shared__ float factor_of[kTile];
  const auto format = p.e5m2 ? __NV_E5M2 : __NV_E4M3;
  const int t = static_cast<int>(threadIdx.x), group = t % 8, local_row = kRows * (t / 8);
  const int64_t tiles = (p.cols + kTile - 1) / kTile, tile_row = blockIdx.x / tiles,
                tile_col = blockIdx.x % tiles;
  const int64_t row = tile_row * kTile + local_row, col = tile_col * kTile + group * kSide;
  const bool inside = row < p.rows && col < p.cols;
  uint32_t x[kRows][kSide] = {};
  if (inside) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) load<Reader>(p, (row + r) * p.cols + col, x[r]);
  }

  float by_row[kRows];
  if constexpr (kKind == Float8GpuProblem::Kind::kWhole) {
    if (p.amax != nullptr) {
      uint32_t most = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kSide; ++j) most = max(most, x[r][j] & kMagnitude);
      }
      most = __reduce_max_sync(0xffffffff, most);
      if (t % 32 == 0) atomicMax(p.most, most);
    }
    const Scale scale = choose_scale(p, p.amax != nullptr ? __float_as_uint(*p.amax) : *p.most);
    by_row[0] = by_row[1] = scale.factor;
    if (blockIdx.x == 0 && t == 0) *p.scales = scale.scale;
  } else {
    if (t < kTile) most_of[t] = 0;
    __syncthreads();
    uint32_t most[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) most[r] = max(most[r], x[r][j] & kMagnitude);
    }
    if constexpr (kKind == Float8GpuProblem::Kind::kSquare) {
      const uint32_t of_warp = __reduce_max_sync(0xffffffff, max(most[0], most[1]));
      if (t % 32 == 0) atomicMax(&most_of[0], of_warp);
      __syncthreads();
      const Scale scale = choose_scale(p, most_of[0]);
      by_row[0] = by_row[1] = scale.factor;
      if (t == 0) {
        p.scales[tile_row * p.scale_stride + tile_col] = scale.scale;
        p.column_scales[tile_col * p.column_scale_stride + tile_row] = scale.scale;
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        for (int lane = 1; lane < 8; lane *= 2)
          most[r] = max(most[r], __shfl_xor_sync(0xffffffff, most[r], lane));
        const Scale scale = choose_scale(p, most[r]);
        by_row[r] = scale.factor;
        if (group == 0 && row + r < p.rows)
          p.scales[tile_col * p.scale_stride + row + r] = scale.scale;
      }
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        uint32_t of_column = max(x[0][j] & kMagnitude, x[1][j] & kMagnitude);
        of_column = max(of_column, __shfl_xor_sync(0xffffffff, of_column, 8));
        of_column = max(of_column, __shfl_xor_sync(0xffffffff, of_column, 16));
        if (t % 32 < 8) atomicMax(&most_of[group * kSide + j], of_column);
      }
      __syncthreads();
      if (t < kTile) {
        const Scale scale = choose_scale(p, most_of[t]);
        factor_of[t] = scale.factor;
        if (tile_col * kTile + t < p.cols)
          p.column_scales[tile_row * p.column_scale_stride + tile_col * kTile + t] = scale.scale;
      }
      __syncthreads();
    }
  }

  uint32_t words[kRows][4] = {};
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    uint32_t codes[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      codes[r] = encode(x[r][j], by_row[r], format);
      words[r][j / 4] |= codes[r] << (j % 4 * 8);
      if constexpr (kKind == Float8GpuProblem::Kind::kLines)
        codes[r] = encode(x[r][j], factor_of[group * kSide + j], format);
    }
    const int chunk = (local_row / 16) ^ group;
    *reinterpret_cast<uint16_t*>(transposed + (group * kSide + j) * kTile + chunk * 16 +
                                 local_row % 16) = static_cast<uint16_t>(codes[0] | codes[1] << 8);
  }
  if (inside && p.codes != nullptr) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      *reinterpret_cast<uint4*>(p.codes + (row + r) * p.cols + col) =
          make_uint4(words[r][0], words[r][1], words[r][2], words[r][3]);
  }
  if (p.transposed == nullptr) return;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = t / 8 + i * 64, chunk = t % 8;
    const int64_t to_row = tile_col * kTile + column, to_col = tile_row * kTile + chunk * 16;
    if (to_row < p.cols && to_col < p.rows)
      *reinterpret_cast<uint4*>(p.transposed + to_row * p.rows + to_col) =
          *reinterpret_cast<const uint4*>(transposed + column * kTile + (chunk ^ column / 16) * 16);
  }
}

template <class Reader>
void quantize_of(const Float8GpuProblem& p, cudaStream_t stream) {
  const auto blocks =
      static_cast<unsigned>((p.rows + kTile - 1) / kTile * ((p.cols + kTile - 1) / kTile));
  using Kind = Float8GpuProblem::Kind;
  switch (p.kind) {
    case Kind::kWhole:
      quantize_kernel<Reader, Kind::kWhole><<<blocks, kThreads, 0, stream>>>(p);
      break;
    case Kind::kLines:
      quantize_kernel<Reader, Kind::kLines><<<blocks, kThreads, 0, stream>>>(p);
      break;
    case Kind::kSquare:
      quantize_kernel<Reader, Kind::kSquare><<<blocks, kThreads, 0, stream>>>(p);
      break;
  }
}

/// Calls f with a value of the type of the problem's reader.
template <class F>
void with_reader(const Float8GpuProblem& p, F f) {
  if (p.activation) {
    ops::cuda::with_activation(*p.activation, [&]<ops::Activation kActivation>() {
      f(ops::cuda::ActivationOf<kActivation>());
    });
  } else if (p.narrow) {
    f(Plain());
  } else {
    f(PlainFloat32());
  }
}

}  // namespace

void float8_amax(const Float8GpuProblem& p, cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 132 * 4;
  const int64_t blocks = (p.rows * p.cols / kSide + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
  with_reader(p,
              [&]<class Reader>(Reader) { amax_kernel<Reader><<<grid, kThreads, 0, stream>>>(p); });
}

void quantize_float8(const Float8GpuProblem& p, cudaStream_t stream) {
  with_reader(p, [&]<class Reader>(Reader) { quantize_of<Reader>(p, stream); });
}

}  // namespace dovetail::mx::cuda
