#include "dovetail/base/philox.h"
#include "dovetail/base/rng.h"
#include "dovetail/mx/cuda/launch.h"
#include "dovetail/mx/encoder.h"

// Quantizes any shape, with counts, stochastic rounding and saturation of non-finite numbers. This
// takes a branch for each element; quantize_vectors.cu is faster. A GPU multiplies and adds
// subnormal numbers exactly and at full rate. So only stochastic rounding uses the codec. The
// arithmetic follows quantize_inl.h.
namespace dovetail::mx::cuda {
namespace {

constexpr int kTileRows = 32, kTileCols = 128, kWarps = 8, kThreads = 32 * kWarps;
/// Rows and columns of a thread in a tile. Lane l of warp w has rows 4 w to 4 w + 3 and columns 4 l
/// to 4 l + 3.
constexpr int kSide = 4;
constexpr unsigned kAll = 0xffffffff;

struct Problem {
  QuantizeProblem p;
  Encoder f;
  /// Four neighbours are loaded and stored at once. This requires columns in multiples of four and
  /// aligned memory.
  bool wide;
  Counts* partial;
};

/// Returns the power of two of a scale byte. 2^-127 is subnormal.
__device__ float power_of_two(int byte) {
  return __uint_as_float(byte == 0 ? 1u << 22 : static_cast<uint32_t>(byte) << 23);
}

/// Loads four neighbours, zeros beyond the row's end.
__device__ void load_four(const Problem& k, int64_t row, int64_t col, uint32_t (&x)[kSide]) {
  const QuantizeProblem& p = k.p;
  const int64_t index = row * p.cols + col;
  if (k.wide && row < p.rows && col < p.cols) {
    if (p.source == Source::kFloat32) {
      const uint4 v = *reinterpret_cast<const uint4*>(static_cast<const uint32_t*>(p.x) + index);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
      return;
    }
    if (p.source == Source::kBFloat16) {
      const uint2 v = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(p.x) + index);
      x[0] = v.x << 16, x[1] = v.x & 0xffff0000, x[2] = v.y << 16, x[3] = v.y & 0xffff0000;
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < kSide; ++j)
    x[j] = row < p.rows && col + j < p.cols ? load_bits(p.source, p.x, index + j) : 0;
}

/// Packs a block's largest finite magnitude and a flag for NaN or infinity into one number. The
/// flag is the sign bit. `join` combines two of them.
__device__ uint32_t summary(uint32_t x) {
  const uint32_t magnitude = x & bits::kMagnitude;
  return magnitude >= bits::kInfinity ? bits::kSign : magnitude;
}
__device__ uint32_t join(uint32_t a, uint32_t b) {
  return ((a | b) & bits::kSign) | max(a & bits::kMagnitude, b & bits::kMagnitude);
}

/// Scale and maximum of one block.
struct Block {
  int byte;  ///< scale byte; 255 if the block is poisoned
  uint32_t amax;
  bool non_finite;
};
__device__ Block make_block(const Problem& k, uint32_t joined) {
  const bool non_finite = (joined & bits::kSign) != 0;
  const uint32_t amax = joined & bits::kMagnitude;
  if (non_finite && !k.p.saturate_non_finite) return {kScaleNan, amax, true};
  return {scale_byte(amax, k.p.spec, k.p.addend), amax, non_finite};
}

__device__ void count_block(const Problem& k, const Block& block, Counts& counts) {
  counts.non_finite_blocks += block.non_finite;
  if (block.byte == kScaleNan) return;
  counts.zero_blocks += block.amax == 0;
  counts.amax_bits = max(counts.amax_bits, block.amax);
  if (block.amax != 0) {
    counts.min_scale = min(counts.min_scale, static_cast<uint32_t>(block.byte));
    counts.max_scale = max(counts.max_scale, static_cast<uint32_t>(block.byte));
    counts.floor_saturated_blocks +=
        saturates(block.amax, scale_byte(block.amax, k.p.spec, 0), k.p.spec);
  }
  counts.saturating_blocks += block.non_finite || saturates(block.amax, block.byte, k.p.spec);
}

struct Encoded {
  uint8_t code;
  float value;  ///< code times scale
};

template <bool kCounting>
__device__ Encoded encode_element(const Problem& k, uint32_t x, const Block& block, uint64_t index,
                                  Counts& counts) {
  if (block.byte == kScaleNan) return {0, __uint_as_float(bits::kQuietNan)};
  const float inverse = power_of_two(kLargestScale - block.byte), scale = power_of_two(block.byte);
  const uint32_t magnitude = x & bits::kMagnitude, sign = x & bits::kSign;
  const float scaled = __fmul_rn(__uint_as_float(magnitude), inverse);
  uint32_t code;
  float rounded;
  if (k.p.stochastic) {
    const PhiloxWords words =
        philox_words(k.p.seed, index / 4, static_cast<uint64_t>(RandomStream::kQuantize));
    code = encode_magnitude(magnitude, block.byte, k.p.spec, {true, words.word[index % 4]});
    rounded = __uint_as_float(decode(static_cast<uint8_t>(code), kScaleBias, k.p.spec));
  } else {
    const uint32_t t = min(__float_as_uint(scaled), k.f.max_bits);
    const uint32_t place = max(t, k.f.min_normal) & bits::kInfinity;
    const float step = __uint_as_float(place + k.f.magic),
                sum = __fadd_rn(__uint_as_float(t), step);
    rounded = __fsub_rn(sum, step);
    code = (__float_as_uint(sum) + (place >> k.f.shift)) & k.f.code_mask;
  }
  if constexpr (kCounting) {
    const bool finite = magnitude < bits::kInfinity;
    counts.underflows += magnitude != 0 && rounded == 0;
    counts.saturations += !finite || saturates(magnitude, block.byte, k.p.spec);
    if (finite) {
      const double value = __uint_as_float(magnitude);
      const double difference = value - static_cast<double>(rounded) * scale;
      counts.signal += value * value;
      counts.error += difference * difference;
    }
  }
  const uint32_t value_sign = k.p.spec.twos_complement && rounded == 0 ? 0 : sign;
  return {signed_code(code, sign != 0, k.p.spec),
          __uint_as_float(__float_as_uint(__fmul_rn(rounded, scale)) | value_sign)};
}

/// Stores four neighbours of a row to the target.
__device__ void store_four(const Problem& k, const QuantizeTarget& target, int64_t row, int64_t col,
                           const Encoded (&e)[kSide]) {
  const QuantizeProblem& p = k.p;
  const int64_t index = row * p.cols + col;
  if (k.wide) {
    if (!target.values) {
      *reinterpret_cast<uchar4*>(target.codes + index) =
          make_uchar4(e[0].code, e[1].code, e[2].code, e[3].code);
    } else if (p.source == Source::kFloat32) {
      *reinterpret_cast<float4*>(static_cast<float*>(target.values) + index) =
          make_float4(e[0].value, e[1].value, e[2].value, e[3].value);
    } else {
      uint2 v;
      v.x = round_to_bfloat16(__float_as_uint(e[0].value)) |
            round_to_bfloat16(__float_as_uint(e[1].value)) << 16;
      v.y = round_to_bfloat16(__float_as_uint(e[2].value)) |
            round_to_bfloat16(__float_as_uint(e[3].value)) << 16;
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(target.values) + index) = v;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    if (col + j >= p.cols) return;
    if (!target.values) {
      target.codes[index + j] = e[j].code;
    } else if (p.source == Source::kFloat32) {
      static_cast<float*>(target.values)[index + j] = e[j].value;
    } else {
      static_cast<uint16_t*>(target.values)[index + j] =
          round_to_bfloat16(__float_as_uint(e[j].value));
    }
  }
}

__device__ void add(Counts& a, const Counts& b) {
  a.zero_blocks += b.zero_blocks;
  a.non_finite_blocks += b.non_finite_blocks;
  a.underflows += b.underflows;
  a.saturations += b.saturations;
  a.saturating_blocks += b.saturating_blocks;
  a.floor_saturated_blocks += b.floor_saturated_blocks;
  a.amax_bits = max(a.amax_bits, b.amax_bits);
  a.min_scale = min(a.min_scale, b.min_scale);
  a.max_scale = max(a.max_scale, b.max_scale);
  a.signal += b.signal;
  a.error += b.error;
}
__device__ Counts no_counts() { return {0, 0, 0, 0, 0, 0, 0, 255, 0, 0, 0}; }

/// Sums `counts` over the threads of a block, in tree order. Thread 0 writes the result.
__device__ void sum_over_threads(Counts counts, Counts* to) {
  __shared__ Counts of_threads[kThreads];
  __syncthreads();
  of_threads[threadIdx.x] = counts;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) add(of_threads[threadIdx.x], of_threads[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) *to = of_threads[0];
}

__device__ int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Position of a thread's elements.
struct Place {
  int warp, lane;
  int64_t tile, top, row, col;  ///< top: first row of the tile
};
__device__ Place find_place(const QuantizeProblem& p) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t tile_cols = ceil_div(p.cols, kTileCols), tile = blockIdx.x,
                top = tile / tile_cols * kTileRows;
  return {warp, lane, tile, top, top + kSide * warp, tile % tile_cols * kTileCols + kSide * lane};
}

using Elements = uint32_t[kSide][kSide];

/// Encodes row r of a thread's elements and stores it to the target. `blocks` has the block of each
/// column.
template <bool kCounting>
__device__ void put_row(const Problem& k, const QuantizeTarget& target, const Place& at, int r,
                        const Elements& x, const Block (&blocks)[kSide], Counts& counts) {
  if (at.col >= k.p.cols || at.row + r >= k.p.rows) return;
  const auto index = static_cast<uint64_t>((at.row + r) * k.p.cols + at.col);
  Encoded encoded[kSide];
#pragma unroll
  for (int j = 0; j < kSide; ++j)
    encoded[j] = encode_element<kCounting>(k, x[r][j], blocks[j], index + j, counts);
  store_four(k, target, at.row + r, at.col, encoded);
}

/// Returns the maximum over the 8 lanes that hold one row of a block.
__device__ uint32_t join_lanes(uint32_t most) {
#pragma unroll
  for (int step = 1; step < kBlock / kSide; step *= 2)
    most = join(most, __shfl_xor_sync(kAll, most, step));
  return most;
}

template <bool kCounting>
__device__ void put_scale(const Problem& k, const Block& block, uint8_t* scale, Counts& counts) {
  *scale = static_cast<uint8_t>(block.byte);
  if constexpr (kCounting) count_block(k, block, counts);
}

template <bool kCounting>
__device__ void quantize_rows(const Problem& k, const Place& at, const Elements& x,
                              Counts& counts) {
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < kSide; ++j) most = join(most, summary(x[r][j]));
    const Block block = make_block(k, join_lanes(most));
    if (at.lane % (kBlock / kSide) == 0 && at.col < k.p.cols && at.row + r < k.p.rows)
      put_scale<kCounting>(
          k, block, k.p.row.scales + (at.row + r) * ceil_div(k.p.cols, kBlock) + at.col / kBlock,
          counts);
    put_row<kCounting>(k, k.p.row, at, r, x, {block, block, block, block}, counts);
  }
}

using Maxima = uint32_t[kWarps][kTileCols];

/// Quantizes column blocks. `joined` has the maximum of each of the thread's columns.
template <bool kCounting>
__device__ void quantize_columns(const Problem& k, const Place& at, const Elements& x,
                                 const uint32_t (&joined)[kSide], Maxima& of_warps,
                                 Counts& counts) {
#pragma unroll
  for (int j = 0; j < kSide; ++j) of_warps[at.warp][kSide * at.lane + j] = joined[j];
  __syncthreads();
  Block blocks[kSide];
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    uint32_t most = 0;
    for (int w = 0; w < kWarps; ++w) most = join(most, of_warps[w][kSide * at.lane + j]);
    blocks[j] = make_block(k, most);
    if (at.warp == 0 && at.col + j < k.p.cols)
      put_scale<kCounting>(k, blocks[j],
                           k.p.column.scales + at.top / kBlock * k.p.cols + at.col + j, counts);
  }
#pragma unroll
  for (int r = 0; r < kSide; ++r) put_row<kCounting>(k, k.p.column, at, r, x, blocks, counts);
}

template <bool kCounting>
__device__ void quantize_squares(const Problem& k, const Place& at, const Elements& x,
                                 const uint32_t (&joined)[kSide], Maxima& of_warps,
                                 Counts& counts) {
  uint32_t most = join_lanes(join(join(joined[0], joined[1]), join(joined[2], joined[3])));
  of_warps[at.warp][at.lane] = most;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) most = join(most, of_warps[w][at.lane]);
  const Block block = make_block(k, most);
  if (at.warp == 0 && at.lane % (kBlock / kSide) == 0 && at.col < k.p.cols)
    put_scale<kCounting>(
        k, block,
        k.p.square.scales + at.top / kBlock * ceil_div(k.p.cols, kBlock) + at.col / kBlock, counts);
#pragma unroll
  for (int r = 0; r < kSide; ++r)
    put_row<kCounting>(k, k.p.square, at, r, x, {block, block, block, block}, counts);
}

/// Quantizes a tile of 32 x 128, which holds whole blocks of every orientation. x is read once and
/// stays in registers.
template <bool kCounting>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const __grid_constant__ Problem k) {
  __shared__ Maxima of_warps;
  const Place at = find_place(k.p);
  Counts first = no_counts(), second = no_counts();
  Elements x;
  uint32_t joined[kSide] = {};
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
    load_four(k, at.row + r, at.col, x[r]);
#pragma unroll
    for (int j = 0; j < kSide; ++j) joined[j] = join(joined[j], summary(x[r][j]));
  }
  if (k.p.row.wanted()) quantize_rows<kCounting>(k, at, x, first);
  if (k.p.column.wanted()) quantize_columns<kCounting>(k, at, x, joined, of_warps, second);
  if (k.p.square.wanted()) quantize_squares<kCounting>(k, at, x, joined, of_warps, first);
  if constexpr (kCounting) {
    sum_over_threads(first, k.partial + 2 * at.tile);
    sum_over_threads(second, k.partial + 2 * at.tile + 1);
  }
}

/// Computes both sums over all tiles, in one thread block.
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const Counts* partial, int64_t count, Counts* sums) {
  for (int which = 0; which < 2; ++which) {
    Counts mine = no_counts();
    for (int64_t i = threadIdx.x; i < count; i += kThreads) add(mine, partial[2 * i + which]);
    sum_over_threads(mine, sums + which);
  }
}

}  // namespace

int64_t tiles(const QuantizeProblem& p) {
  return ((p.rows + kTileRows - 1) / kTileRows) * ((p.cols + kTileCols - 1) / kTileCols);
}

void quantize(const QuantizeProblem& problem, Counts* partial, Counts* sums, cudaStream_t stream) {
  if (partial == nullptr && fits_vectors(problem)) return quantize_vectors(problem, stream);
  const auto blocks = static_cast<unsigned>(tiles(problem));
  const auto aligned = [](const void* memory) {
    return reinterpret_cast<uintptr_t>(memory) % 16 == 0;
  };
  bool wide = problem.cols % kSide == 0 && aligned(problem.x);
  for (const QuantizeTarget* target : {&problem.row, &problem.column, &problem.square})
    wide = wide && aligned(target->codes) && aligned(target->values);
  const Problem k = {problem, Encoder(problem.spec), wide, partial};
  if (partial == nullptr) {
    quantize_kernel<false><<<blocks, kThreads, 0, stream>>>(k);
  } else {
    quantize_kernel<true><<<blocks, kThreads, 0, stream>>>(k);
    sum_kernel<<<1, kThreads, 0, stream>>>(partial, blocks, sums);
  }
}

}  // namespace dovetail::mx::cuda
