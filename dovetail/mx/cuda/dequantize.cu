#include <cstring>

#include "dovetail/mx/cuda/vectors.cuh"

// Bytes an element: 1 read, 1/32 for its scale, 2 or 4 written. A thread stores 16 bytes at a time,
// so that a warp stores whole sectors. It loads the 4 or 8 codes of these elements.
namespace dovetail::mx::cuda {
namespace {

struct Problem {
  DequantizeProblem p;
  /// Shifts that move a code's sign to bit 31 of a float, and its exponent to bit 23
  int up, down;
  uint32_t mask;  ///< mask of sign and magnitude after the shifts
  float unit;     ///< corrects the exponent bias; for MXINT8 the unit of the last place
  float largest;  ///< largest number after the shifts; anything larger is infinity or NaN
};

/// Number of elements in 16 bytes.
template <class T>
constexpr int kWidthOf = 16 / sizeof(T);

/// Returns the same float as `decode`, except that a NaN may have other bits. A subnormal code
/// becomes a subnormal float first. `scale` is NaN for byte 255. Both products are exact.
template <bool kInt8>
__device__ float decode_element(const Problem& k, uint32_t code, float scale) {
  if constexpr (kInt8) {
    const float shifted = __uint_as_float(0x4b000000 | (code ^ 0x80));  // 2^23 + 128 + code
    return __fmul_rn(__fmul_rn(__fsub_rn(shifted, 8388736.0f), k.unit), scale);
  }
  const auto placed = static_cast<uint32_t>(static_cast<int>(code << k.up) >> k.down) & k.mask;
  const float number = __uint_as_float(placed);
  const float finite = __fmul_rn(number, k.unit);
  return __fmul_rn(fabsf(number) > k.largest ? __uint_as_float(placed | bits::kInfinity) : finite,
                   scale);
}

__device__ float scale_or_nan(uint32_t byte) {
  return byte == kScaleNan ? __uint_as_float(bits::kQuietNan) : scale_of(byte);
}

template <int kWidth>
__device__ void load_bytes(const uint8_t* from, uint32_t (&words)[kWidth / 4]) {
  if constexpr (kWidth == 4) {
    words[0] = *reinterpret_cast<const uint32_t*>(from);
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    words[0] = v.x, words[1] = v.y;
  }
}

template <int kWidth>
__device__ void load_codes(const Problem& k, const Place& at,
                           uint32_t (&codes)[kRows][kWidth / 4]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < at.count) load_bytes<kWidth>(k.p.codes + at.index + r * at.stride, codes[r]);
  }
}

template <class T, bool kInt8, int kWidth = kWidthOf<T>>
__device__ void put(const Problem& k, const uint32_t (&codes)[kWidth / 4],
                    const float (&scale)[kWidth], T* to) {
  float x[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j)
    x[j] = decode_element<kInt8>(k, codes[j / 4] >> 8 * (j % 4) & 0xff, scale[j]);
  *reinterpret_cast<uint4*>(to) = pack(x);
}

template <class T, bool kInt8>
__global__ void __launch_bounds__(kThreads, 4) row_kernel(const __grid_constant__ Problem k, T* y) {
  constexpr int kWidth = kWidthOf<T>;
  const Place at = flat_place<kWidth>(k.p.rows * k.p.cols);
  uint32_t codes[kRows][kWidth / 4] = {}, bytes[kRows] = {};
  load_codes<kWidth>(k, at, codes);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < at.count) bytes[r] = k.p.scales[(at.index + r * at.stride) / kBlock];
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= at.count) return;
    float scale[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) scale[j] = scale_or_nan(bytes[r]);
    put<T, kInt8>(k, codes[r], scale, y + at.index + r * at.stride);
  }
}

/// Dequantizes column blocks or square blocks.
template <class T, bool kInt8, bool kSquare>
__global__ void __launch_bounds__(kThreads, 4)
    tile_kernel(const __grid_constant__ Problem k, T* y) {
  constexpr int kWidth = kWidthOf<T>;
  const Tile tile = find_tile<kWidth>(k.p.cols);
  const Place at = tile.place<kWidth>(k.p.rows, k.p.cols);
  if (at.count == 0) return;
  const int64_t col = tile.left + kWidth * tile.lane, block = tile.top / kBlock;
  uint32_t codes[kRows][kWidth / 4] = {}, bytes[kWidth / 4];
  load_codes<kWidth>(k, at, codes);
  float scale[kWidth];
  if constexpr (kSquare) {
    const uint32_t byte = k.p.scales[(block * k.p.cols + col) / kBlock];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) scale[j] = scale_or_nan(byte);
  } else {
    load_bytes<kWidth>(k.p.scales + block * k.p.cols + col, bytes);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) scale[j] = scale_or_nan(bytes[j / 4] >> 8 * (j % 4) & 0xff);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < at.count) put<T, kInt8>(k, codes[r], scale, y + at.index + r * at.stride);
  }
}

template <class T, bool kInt8>
void launch_vectors(const Problem& k, T* y, cudaStream_t stream) {
  constexpr int kWidth = kWidthOf<T>;
  const unsigned tiles = tile_blocks<kWidth>(k.p.rows, k.p.cols);
  if (k.p.row_block == 1) {
    row_kernel<T, kInt8><<<flat_blocks<kWidth>(k.p.rows * k.p.cols), kThreads, 0, stream>>>(k, y);
  } else if (k.p.col_block == 1) {
    tile_kernel<T, kInt8, false><<<tiles, kThreads, 0, stream>>>(k, y);
  } else {
    tile_kernel<T, kInt8, true><<<tiles, kThreads, 0, stream>>>(k, y);
  }
}

/// Dequantizes any shape, element by element.
template <class T>
__global__ void __launch_bounds__(kThreads) any_kernel(const DequantizeProblem p, T* y) {
  const int64_t scale_cols = (p.cols + p.col_block - 1) / p.col_block,
                stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.rows * p.cols;
       i += stride) {
    const int scale = p.scales[i / p.cols / p.row_block * scale_cols + i % p.cols / p.col_block];
    const uint32_t value = decode(p.codes[i], scale, p.spec);
    if constexpr (sizeof(T) == 4) {
      y[i] = __uint_as_float(value);
    } else {
      y[i] = round_to_bfloat16(value);
    }
  }
}

Problem make_problem(const DequantizeProblem& p) {
  const ElementSpec& spec = p.spec;
  const int fraction = bits::kFractionBits - spec.mantissa_bits;
  const uint32_t magnitude = (1u << (spec.bits - 1)) - 1;
  const auto power = [](int exponent) {
    return static_cast<uint32_t>(exponent + bits::kExponentBias) << 23;
  };
  const auto as_float = [](uint32_t from) {
    float to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
  };
  return {p,
          32 - spec.bits,
          spec.mantissa_bits + 9 - spec.bits,
          bits::kSign | magnitude << fraction,
          as_float(power(spec.twos_complement ? -spec.mantissa_bits
                                              : bits::kExponentBias - 1 + spec.min_exponent)),
          as_float(spec.max_code << fraction)};
}

template <class T>
void launch(const DequantizeProblem& p, T* y, cudaStream_t stream) {
  if (p.cols % kBlock == 0 && is_aligned(p.codes, 8) && is_aligned(y, 16) &&
      is_aligned(p.scales, 8)) {
    const Problem k = make_problem(p);
    return p.spec.twos_complement ? launch_vectors<T, true>(k, y, stream)
                                  : launch_vectors<T, false>(k, y, stream);
  }
  constexpr int64_t kMostBlocks = 1 << 16;
  const int64_t blocks = (p.rows * p.cols + kThreads - 1) / kThreads;
  any_kernel<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0,
               stream>>>(p, y);
}

}  // namespace

void dequantize(const DequantizeProblem& p, float* y, cudaStream_t stream) { launch(p, y, stream); }
void dequantize(const DequantizeProblem& p, uint16_t* y, cudaStream_t stream) {
  launch(p, y, stream);
}

}  // namespace dovetail::mx::cuda
