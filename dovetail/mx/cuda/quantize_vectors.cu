#include <cuda_fp16.h>

#include <type_traits>

#include "dovetail/mx/cuda/vectors.cuh"
#include "dovetail/ops/cuda/activation.cuh"

// Quantizes at memory bandwidth: nearest even, poisoned blocks, no counts. Bytes an element: 2 or 4
// read, 1 written for each copy of codes, 1/32 for its scales. At 0.8 of its bandwidth, an H100 has
// time for 18 integer instructions an element of bfloat16. E4M3 and E5M2 need about 5, all other
// formats about 11. An activation is computed while its input is read, and its result is never
// stored. Bytes an element are 2 read (SwiGLU 4) and 2 written, 4 less than with a stored result.
namespace dovetail::mx::cuda {
namespace {

/// Method that turns a number into a code. kMagnitude, kInt8: rounding by addition, see
/// quantize_inl.h.
enum class Codec { kE4M3, kE5M2, kMagnitude, kInt8 };
enum class Kind { kNone, kCodes, kValues };

struct Problem {
  QuantizeProblem p;
  Encoder f;
  uint32_t code_masks;  ///< masks of four codes in a word
  int sign_shift;       ///< shift from a byte's top bit to the code's sign bit
};

/// Number of elements in 16 bytes.
template <Source kSource>
constexpr int kWidthOf = kSource == Source::kFloat32 ? 4 : 8;

/// Reader of x itself. The other reader is ops::cuda::ActivationOf, for bfloat16.
template <Source kSource>
struct Plain {
  static __device__ uint4 load(const void* x, int64_t index, int64_t) {
    constexpr int64_t kBytes = 16 / kWidthOf<kSource>;
    return *reinterpret_cast<const uint4*>(static_cast<const char*>(x) + index * kBytes);
  }
};

template <class Reader>
__device__ void load(const Problem& k, const Place& at, uint4 (&raw)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    raw[r] = make_uint4(0, 0, 0, 0);
    if (r < at.count) raw[r] = Reader::load(k.p.x, at.index + r * at.stride, k.p.cols);
  }
}

template <Source kSource, int kWidth = kWidthOf<kSource>>
__device__ void unpack(const uint4& raw, float (&x)[kWidth]) {
  const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kSource == Source::kFloat32) {
      x[i] = __uint_as_float(words[i]);
    } else if constexpr (kSource == Source::kBFloat16) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
    } else {
      x[2 * i] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i] & 0xffff)));
      x[2 * i + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i] >> 16)));
    }
  }
}

/// Returns the larger magnitude; NaN if one of them is NaN. If its bits are not below infinity's,
/// it is not finite.
__device__ float join(float most, float x) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(most), "f"(fabsf(x)));
  return larger;
}

/// Returns the scale byte of a block. Except for MXINT8, a subnormal maximum gives 0.
template <Codec kCodec>
__device__ uint32_t byte_of(const Problem& k, float most) {
  const uint32_t amax = __float_as_uint(most);
  if constexpr (kCodec == Codec::kInt8) {
    return static_cast<uint32_t>(scale_byte(amax, k.p.spec, k.p.addend));
  } else {
    const int byte =
        static_cast<int>((amax + k.p.addend) >> bits::kFractionBits) - k.p.spec.max_exponent;
    return static_cast<uint32_t>(amax >= bits::kInfinity ? kScaleNan : max(byte, 0));
  }
}

/// Scales of a vector's elements. keep: bytes of ones for elements that are not poisoned.
template <int kWidth>
struct Scales {
  float inverse[kWidth], scale[kWidth];
  uint32_t keep[kWidth / 4];
};
template <int kWidth>
__device__ Scales<kWidth> same_scales(uint32_t byte) {
  Scales<kWidth> s;
  const float inverse = inverse_of(byte), scale = scale_of(byte);
  const uint32_t keep = byte == kScaleNan ? 0 : ~0u;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) s.inverse[j] = inverse, s.scale[j] = scale, s.keep[j / 4] = keep;
  return s;
}
/// Returns the scales for four scale bytes in each word.
template <int kWidth>
__device__ Scales<kWidth> scales_of(const uint32_t (&words)[kWidth / 4]) {
  Scales<kWidth> s;
#pragma unroll
  for (int i = 0; i < kWidth / 4; ++i) {
    s.keep[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t byte = words[i] >> 8 * j & 0xff;
      s.inverse[4 * i + j] = inverse_of(byte);
      s.scale[4 * i + j] = scale_of(byte);
      s.keep[i] |= byte == kScaleNan ? 0 : 0xffu << 8 * j;
    }
  }
  return s;
}

/// Magnitude in units of its scale, rounded by an addition. The low bits of the sum are the code.
struct Rounded {
  uint32_t code;  ///< bits above the format's bits are not cleared
  float value;
};
__device__ Rounded round_magnitude(const Problem& k, float x, float inverse) {
  const uint32_t t = min(__float_as_uint(__fmul_rn(fabsf(x), inverse)), k.f.max_bits);
  const uint32_t place = max(t, k.f.min_normal) & bits::kInfinity;
  const float step = __uint_as_float(place + k.f.magic), sum = __fadd_rn(__uint_as_float(t), step);
  return {__float_as_uint(sum) + (place >> k.f.shift), __fsub_rn(sum, step)};
}

/// Gathers byte `kByte` of each of four words.
template <int kByte>
__device__ uint32_t gather(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  constexpr uint32_t kPair = kByte | (kByte + 4) << 4;
  return __byte_perm(__byte_perm(a, b, kPair), __byte_perm(c, d, kPair), 0x5410);
}

#if __CUDA_ARCH__ >= 890
template <Codec kCodec>
constexpr bool kConverts = kCodec == Codec::kE4M3 || kCodec == Codec::kE5M2;
#else
template <Codec kCodec>
constexpr bool kConverts = false;
#endif

/// Converts with the conversion instruction: nearest even, saturating, with subnormal numbers. The
/// caller masks NaN.
template <Codec kCodec>
__device__ uint32_t convert(float low, float high) {
  uint16_t pair;
  if constexpr (kCodec == Codec::kE4M3)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Returns the codes of four elements.
template <Codec kCodec>
__device__ uint32_t encode(const Problem& k, const float* x, const float* inverse) {
  if constexpr (kConverts<kCodec>) {
    return convert<kCodec>(__fmul_rn(x[0], inverse[0]), __fmul_rn(x[1], inverse[1])) |
           convert<kCodec>(__fmul_rn(x[2], inverse[2]), __fmul_rn(x[3], inverse[3])) << 16;
  } else {
    uint32_t low[4], top[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      low[j] = round_magnitude(k, x[j], inverse[j]).code;
      top[j] = __float_as_uint(x[j]);
    }
    const uint32_t codes = gather<0>(low[0], low[1], low[2], low[3]) & k.code_masks;
    const uint32_t signs = gather<3>(top[0], top[1], top[2], top[3]) & 0x80808080;
    if constexpr (kCodec == Codec::kInt8) {
      const uint32_t negative = (0x80808080 - codes) ^ 0x80808080, where = (signs >> 7) * 0xff;
      return (negative & where) | (codes & ~where);
    }
    return codes | signs >> k.sign_shift;
  }
}

/// Returns an element's dequantized number.
template <Codec kCodec>
__device__ float round_value(const Problem& k, float x, float inverse, float scale) {
  const float rounded = round_magnitude(k, x, inverse).value;
  const uint32_t sign =
      kCodec == Codec::kInt8 && rounded == 0 ? 0 : __float_as_uint(x) & bits::kSign;
  return __uint_as_float(__float_as_uint(__fmul_rn(rounded, scale)) | sign);
}

/// Returns `word` where `keep` has ones, otherwise the quiet NaN of the element type.
template <int kWidth>
__device__ uint32_t poison(uint32_t word, int index, const uint32_t* keep) {
  if constexpr (kWidth == 4) {
    const uint32_t mask = __byte_perm(keep[0], 0, 0x1111 * index);
    return (word & mask) | (bits::kQuietNan & ~mask);
  } else {
    const uint32_t mask = __byte_perm(keep[index / 2], 0, index % 2 ? 0x3322 : 0x1100);
    return (word & mask) | (0x7fc07fc0 & ~mask);
  }
}

template <Codec kCodec, Kind kKind, int kWidth>
__device__ void put(const Problem& k, const QuantizeTarget& target, int64_t index,
                    const float (&x)[kWidth], const Scales<kWidth>& s) {
  if constexpr (kKind == Kind::kValues) {
    float values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      values[j] = round_value<kCodec>(k, x[j], s.inverse[j], s.scale[j]);
    uint4 v = pack(values);
    v = {poison<kWidth>(v.x, 0, s.keep), poison<kWidth>(v.y, 1, s.keep),
         poison<kWidth>(v.z, 2, s.keep), poison<kWidth>(v.w, 3, s.keep)};
    *reinterpret_cast<uint4*>(static_cast<char*>(target.values) + index * (16 / kWidth)) = v;
  } else if constexpr (kWidth == 4) {
    *reinterpret_cast<uint32_t*>(target.codes + index) =
        encode<kCodec>(k, x, s.inverse) & s.keep[0];
  } else {
    *reinterpret_cast<uint2*>(target.codes + index) =
        make_uint2(encode<kCodec>(k, x, s.inverse) & s.keep[0],
                   encode<kCodec>(k, x + 4, s.inverse + 4) & s.keep[1]);
  }
}

/// Returns the maximum over the lanes that hold one row of a block.
template <int kWidth>
__device__ float join_lanes(float most) {
#pragma unroll
  for (int step = 1; step < kBlock / kWidth; step *= 2)
    most = join(most, __shfl_xor_sync(kAll, most, step));
  return most;
}

template <Source kSource, Codec kCodec, Kind kKind>
__device__ void put_rows(const Problem& k, const Place& at, const uint4 (&raw)[kRows]) {
  constexpr int kWidth = kWidthOf<kSource>, kLanes = kBlock / kWidth;
  static_assert(kLanes >= kRows, "each lane of a block stores one scale at most");
  const int mine = static_cast<int>(threadIdx.x) % kLanes;
  uint32_t byte_of_mine = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float x[kWidth], most = 0;
    unpack<kSource>(raw[r], x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) most = join(most, x[j]);
    const uint32_t byte = byte_of<kCodec>(k, join_lanes<kWidth>(most));
    if (mine == r) byte_of_mine = byte;
    if (r < at.count)
      put<kCodec, kKind>(k, k.p.row, at.index + r * at.stride, x, same_scales<kWidth>(byte));
  }
  // Rows are whole blocks, so the block number follows from the element index.
  if (mine < at.count)
    k.p.row.scales[(at.index + mine * at.stride) / kBlock] = static_cast<uint8_t>(byte_of_mine);
}

template <Source kSource, Codec kCodec, Kind kKind, class Reader = Plain<kSource>>
__global__ void __launch_bounds__(kThreads, std::is_same_v<Reader, Plain<kSource>> ? 4 : 3)
    row_kernel(const __grid_constant__ Problem k) {
  const Place at = flat_place<kWidthOf<kSource>>(k.p.rows * k.p.cols);
  uint4 raw[kRows];
  load<Reader>(k, at, raw);
  put_rows<kSource, kCodec, kKind>(k, at, raw);
}

/// Quantizes a tile of 32 rows, read once, in column blocks. Makes row blocks, too, unless kRow is
/// kNone.
template <Source kSource, Codec kCodec, Kind kRow, Kind kColumn, class Reader = Plain<kSource>>
__global__ void __launch_bounds__(kThreads,
                                  kRow == Kind::kValues || kColumn == Kind::kValues ? 3 : 4)
    column_kernel(const __grid_constant__ Problem k) {
  constexpr int kWidth = kWidthOf<kSource>, kTileCols = 32 * kWidth;
  alignas(16) __shared__ float of_warps[kWarps][kTileCols];
  alignas(16) __shared__ uint8_t bytes[kTileCols];
  const Tile tile = find_tile<kWidth>(k.p.cols);
  const Place at = tile.place<kWidth>(k.p.rows, k.p.cols);
  uint4 raw[kRows];
  load<Reader>(k, at, raw);

  float most[kWidth] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float x[kWidth];
    unpack<kSource>(raw[r], x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) most[j] = join(most[j], x[j]);
  }
#pragma unroll
  for (int j = 0; j < kWidth; j += 4)
    *reinterpret_cast<float4*>(&of_warps[tile.warp][kWidth * tile.lane + j]) =
        make_float4(most[j], most[j + 1], most[j + 2], most[j + 3]);
  __syncthreads();
  if (threadIdx.x < kTileCols) {
    float of_column = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) of_column = join(of_column, of_warps[w][threadIdx.x]);
    const auto byte = static_cast<uint8_t>(byte_of<kCodec>(k, of_column));
    const int64_t col = tile.left + threadIdx.x;
    bytes[threadIdx.x] = byte;
    if (col < k.p.cols) k.p.column.scales[tile.top / kBlock * k.p.cols + col] = byte;
  }
  if constexpr (kRow != Kind::kNone) put_rows<kSource, kCodec, kRow>(k, at, raw);
  __syncthreads();

  uint32_t words[kWidth / 4];
#pragma unroll
  for (int i = 0; i < kWidth / 4; ++i)
    words[i] = *reinterpret_cast<const uint32_t*>(bytes + kWidth * tile.lane + 4 * i);
  const Scales<kWidth> s = scales_of<kWidth>(words);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float x[kWidth];
    unpack<kSource>(raw[r], x);
    if (r < at.count) put<kCodec, kColumn>(k, k.p.column, at.index + r * at.stride, x, s);
  }
}

template <Source kSource, Codec kCodec, Kind kKind>
__global__ void __launch_bounds__(kThreads, 4) square_kernel(const __grid_constant__ Problem k) {
  constexpr int kWidth = kWidthOf<kSource>, kLanes = kBlock / kWidth;
  __shared__ float of_warps[kWarps][32 / kLanes];
  const Tile tile = find_tile<kWidth>(k.p.cols);
  const Place at = tile.place<kWidth>(k.p.rows, k.p.cols);
  uint4 raw[kRows];
  load<Plain<kSource>>(k, at, raw);

  float most = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float x[kWidth];
    unpack<kSource>(raw[r], x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) most = join(most, x[j]);
  }
  most = join_lanes<kWidth>(most);
  if (tile.lane % kLanes == 0) of_warps[tile.warp][tile.lane / kLanes] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = join(most, of_warps[w][tile.lane / kLanes]);
  const uint32_t byte = byte_of<kCodec>(k, most);
  if (tile.warp == 0 && tile.lane % kLanes == 0 && at.count > 0)
    k.p.square.scales[(tile.top * k.p.cols / kBlock + tile.left + kWidth * tile.lane) / kBlock] =
        static_cast<uint8_t>(byte);
  const Scales<kWidth> s = same_scales<kWidth>(byte);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float x[kWidth];
    unpack<kSource>(raw[r], x);
    if (r < at.count) put<kCodec, kKind>(k, k.p.square, at.index + r * at.stride, x, s);
  }
}

Kind kind(const QuantizeTarget& target) {
  return target.values ? Kind::kValues : target.codes ? Kind::kCodes : Kind::kNone;
}

template <Source kSource, Codec kCodec>
void launch(const Problem& k, cudaStream_t stream) {
  constexpr int kWidth = kWidthOf<kSource>;
  // One codec makes the values of all formats except MXINT8.
  constexpr Codec kValuesCodec = kCodec == Codec::kInt8 ? kCodec : Codec::kMagnitude;
  const Kind row = kind(k.p.row), column = kind(k.p.column), square = kind(k.p.square);
  const auto start = [&](auto kernel, unsigned blocks) {
    kernel<<<blocks, kThreads, 0, stream>>>(k);
  };
  const unsigned flat = flat_blocks<kWidth>(k.p.rows * k.p.cols),
                 tiles = tile_blocks<kWidth>(k.p.rows, k.p.cols);
  constexpr Kind kNone = Kind::kNone, kCodes = Kind::kCodes, kValues = Kind::kValues;
  if (row == kCodes && column == kNone) start(row_kernel<kSource, kCodec, kCodes>, flat);
  if (row == kNone && column == kCodes) start(column_kernel<kSource, kCodec, kNone, kCodes>, tiles);
  if (row == kCodes && column == kCodes)
    start(column_kernel<kSource, kCodec, kCodes, kCodes>, tiles);
  if (square == kCodes) start(square_kernel<kSource, kCodec, kCodes>, tiles);
  if constexpr (kSource != Source::kFloat16) {
    if (row == kValues && column == kNone) start(row_kernel<kSource, kValuesCodec, kValues>, flat);
    if (row == kNone && column == kValues)
      start(column_kernel<kSource, kValuesCodec, kNone, kValues>, tiles);
    if (row == kValues && column == kValues)
      start(column_kernel<kSource, kValuesCodec, kValues, kValues>, tiles);
    if (row == kValues && column == kCodes)
      start(column_kernel<kSource, kCodec, kValues, kCodes>, tiles);
    if (square == kValues) start(square_kernel<kSource, kValuesCodec, kValues>, tiles);
  }
}

/// Makes values of one orientation of an activation of bfloat16.
template <class Reader>
void launch_activated(const Problem& k, cudaStream_t stream) {
  constexpr Source kSource = Source::kBFloat16;
  constexpr int kWidth = kWidthOf<kSource>;
  if (kind(k.p.row) == Kind::kValues) {
    row_kernel<kSource, Codec::kMagnitude, Kind::kValues, Reader>
        <<<flat_blocks<kWidth>(k.p.rows * k.p.cols), kThreads, 0, stream>>>(k);
  } else {
    column_kernel<kSource, Codec::kMagnitude, Kind::kNone, Kind::kValues, Reader>
        <<<tile_blocks<kWidth>(k.p.rows, k.p.cols), kThreads, 0, stream>>>(k);
  }
}

template <Source kSource>
void launch_by_format(const Problem& k, cudaStream_t stream) {
  const ElementSpec& spec = k.p.spec;
  if (spec.twos_complement) return launch<kSource, Codec::kInt8>(k, stream);
  if (spec.bits == 8 && spec.mantissa_bits == 3) return launch<kSource, Codec::kE4M3>(k, stream);
  if (spec.bits == 8 && spec.mantissa_bits == 2) return launch<kSource, Codec::kE5M2>(k, stream);
  launch<kSource, Codec::kMagnitude>(k, stream);
}

}  // namespace

void quantize_vectors(const QuantizeProblem& p, cudaStream_t stream) {
  const uint32_t mask = Encoder(p.spec).code_mask;
  const Problem k = {p, Encoder(p.spec), mask * 0x01010101, 8 - p.spec.bits};
  if (p.activation)
    return ops::cuda::with_activation(*p.activation, [&]<ops::Activation kActivation>() {
      launch_activated<ops::cuda::ActivationOf<kActivation>>(k, stream);
    });
  if (p.source == Source::kFloat32) return launch_by_format<Source::kFloat32>(k, stream);
  if (p.source == Source::kBFloat16) return launch_by_format<Source::kBFloat16>(k, stream);
  launch_by_format<Source::kFloat16>(k, stream);
}

}  // namespace dovetail::mx::cuda
