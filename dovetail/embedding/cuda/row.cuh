#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif

#include <cstdint>
#include <type_traits>

#include "dovetail/base/philox.h"
#include "dovetail/embedding/pack/cuda_kernels.h"

/// Loads and stores of rows of any width. A team of `lanes` lanes (threads of one warp) holds a row
/// in its registers, as vectors of four elements. Vector v of lane l has four neighbouring columns,
/// from column 4 * (l + v * lanes) on.
namespace dovetail::embedding::cuda {

inline constexpr int kVector = 4;     ///< elements of a vector
inline constexpr int kThreads = 256;  ///< threads of a block

/// Loads one vector. `left` is the number of elements from `from` to the end of the row. Elements
/// beyond the end are zeros. `whole` may be true only if left <= 0 or left >= 4. Then `from` must
/// be aligned to the size of four elements.
__device__ inline float4 load_four(const float* from, int64_t left, bool whole) {
  if (left <= 0) return {0, 0, 0, 0};
  if (whole) return __ldg(reinterpret_cast<const float4*>(from));
  return {from[0], left > 1 ? from[1] : 0, left > 2 ? from[2] : 0, left > 3 ? from[3] : 0};
}

/// Converts four bfloat16 numbers to float32.
__device__ inline float4 widened(uint2 bits) {
  return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
          __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u)};
}

__device__ inline float4 load_four(const __nv_bfloat16* from, int64_t left, bool whole) {
  if (left <= 0) return {0, 0, 0, 0};
  if (whole) return widened(__ldg(reinterpret_cast<const uint2*>(from)));
  const auto at = [&](int i) { return left > i ? __bfloat162float(from[i]) : 0.0f; };
  return {at(0), at(1), at(2), at(3)};
}

/// Does the same as load_four, for data that the same kernel writes. It must avoid the read-only
/// cache (`__ldg`).
__device__ inline float4 load_own(const float* from, int64_t left, bool whole) {
  if (left > 0 && whole) return *reinterpret_cast<const float4*>(from);
  return load_four(from, left, false);
}

__device__ inline float4 load_own(const __nv_bfloat16* from, int64_t left, bool whole) {
  if (left > 0 && whole) return widened(*reinterpret_cast<const uint2*>(from));
  return load_four(from, left, false);
}

/// Stores the elements of a vector that are in the row, with `left` and `whole` as in load_four.
__device__ inline void store_four(float4 x, float* to, int64_t left, bool whole) {
  if (left <= 0) return;
  if (whole) {
    *reinterpret_cast<float4*>(to) = x;
    return;
  }
  to[0] = x.x;
  if (left > 1) to[1] = x.y;
  if (left > 2) to[2] = x.z;
  if (left > 3) to[3] = x.w;
}

/// Rounds x stochastically to bfloat16 (see row_format.h) and returns its 16 bits. If x is finite,
/// adds the upper 16 bits of the random `word` to the bits of x. The upper half of the sum is the
/// result.
__device__ inline uint32_t rounded(float x, uint32_t word) {
  const uint32_t bits = __float_as_uint(x);
  const bool finite = (bits & 0x7fffffffu) < 0x7f800000u;
  return (finite ? bits + (word >> 16) : bits) >> 16;
}

/// Rounds a float32 vector to bfloat16 with one random word for each element (`rounded`) and stores
/// it. `left` and `whole` are as in load_four.
__device__ inline void store_four(float4 x, PhiloxWords words, __nv_bfloat16* to, int64_t left,
                                  bool whole) {
  if (left <= 0) return;
  const uint32_t a = rounded(x.x, words.word[0]), b = rounded(x.y, words.word[1]),
                 c = rounded(x.z, words.word[2]), d = rounded(x.w, words.word[3]);
  if (whole) {
    *reinterpret_cast<uint2*>(to) = {a | b << 16, c | d << 16};
    return;
  }
  auto* bits = reinterpret_cast<uint16_t*>(to);
  bits[0] = static_cast<uint16_t>(a);
  if (left > 1) bits[1] = static_cast<uint16_t>(b);
  if (left > 2) bits[2] = static_cast<uint16_t>(c);
  if (left > 3) bits[3] = static_cast<uint16_t>(d);
}

/// Adds scale * x to `sum`.
__device__ inline void add_scaled(float scale, float4 x, float4& sum) {
  sum.x = fmaf(scale, x.x, sum.x);
  sum.y = fmaf(scale, x.y, sum.y);
  sum.z = fmaf(scale, x.z, sum.z);
  sum.w = fmaf(scale, x.w, sum.w);
}

/// Division of numbers below 2^31 by a fixed divisor, as a product (Granlund and Montgomery 1994).
struct Divider {
  explicit Divider(uint32_t by) : divisor(by) {
    while ((uint64_t{1} << shift) < by) ++shift;
    factor = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - by) / by + 1);
  }
  __device__ uint32_t divided(uint32_t x) const { return (__umulhi(x, factor) + x) >> shift; }

  uint32_t divisor, factor = 0, shift = 0;
};

/// Number of lanes that share a row (a power of two, at most a warp), and number of vectors that
/// each lane holds.
struct Team {
  int lanes, vectors;
};

/// Returns the lanes of the smallest team for a row of `dim` elements.
__host__ __device__ inline int lanes_of(int dim) {
  int lanes = 1;
  while (lanes < 32 && lanes * kVector < dim) lanes *= 2;
  return lanes;
}

/// Returns the smallest team that can hold a row of `widest` elements.
inline Team team_of(int64_t widest) {
  Team team{lanes_of(static_cast<int>(widest)), 1};
  while (int64_t{team.lanes} * team.vectors * kVector < widest) team.vectors *= 2;
  return team;
}

/// Calls f(example, vectors), so that f can select a kernel for the pack. The type of `example` is
/// the element type of its rows, float or bfloat16. `vectors` is an integral_constant: the vectors
/// that a lane holds in a team for the widest row.
template <class F>
void with_rows(const CudaPack& pack, F f) {
  const auto vectors = [&](auto example) {
    switch (team_of(pack.widest).vectors) {
      case 1:
        return f(example, std::integral_constant<int, 1>());
      case 2:
        return f(example, std::integral_constant<int, 2>());
      case 4:
        return f(example, std::integral_constant<int, 4>());
      default:
        return f(example, std::integral_constant<int, kCudaDim / 32 / kVector>());
    }
  };
  if (pack.storage == ops::Storage::kFloat32) {
    vectors(float());
  } else {
    vectors(__nv_bfloat16());
  }
}

/// Returns the number of blocks that have `threads` threads together, or `most` if it is smaller.
inline unsigned blocks_for(int64_t threads, int64_t most) {
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

/// Returns a grid whose blocks have `samples_of_block` samples of one feature. With very many
/// features, a block has further ones.
inline dim3 grid_of(int64_t samples, int64_t samples_of_block, int64_t features) {
  constexpr int64_t kMostRows = 65535;  // blocks of a grid in its second dimension
  return dim3(static_cast<unsigned>((samples + samples_of_block - 1) / samples_of_block),
              static_cast<unsigned>(features < kMostRows ? features : kMostRows));
}

}  // namespace dovetail::embedding::cuda
