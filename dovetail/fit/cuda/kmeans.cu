#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "dovetail/fit/cuda/launch.h"
#include "dovetail/ops/cuda/queue.cuh"

// Kernels of k-means. N rows, D columns, K centres.
//
// Bounds on an H100 with 3.35 TB/s and 495 TFLOP/s of TF32, for 819,200 x 100 rows (328 MB).
//   nearest_kernel: one read of x, 0.10 ms; 6 N D K tensor FLOPs (three TF32 products), 0.06 ms at
//     K = 64, 1.0 ms at K = 1024.
//   sums_kernel: one read of x, 0.10 ms, then 8 (K D + K + 1) bytes written per shard. The tree
//     reads them again: 0.4 ms together at K = 1024.
//   squares_kernel: one read of x for each four points, 0.10 ms.
//
// `tests/fit/kmeans_kernels_test.cpp` compiles this file for a CPU, with its own `queue`,
// `multiply_tf32` and `to_tf32`.

namespace dovetail::fit::cuda {
namespace {

constexpr int kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kShard = static_cast<int>(kCudaShardRows);
constexpr int kShardBits = 10;
static_assert(1 << kShardBits == kShard);

#ifdef __CUDACC__
using ops::cuda::queue;

/// Rounds to the 10 explicit bits of TF32, ties away from zero.
__device__ float to_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

/// Adds the product of a (16, 8) and b (8, 8) to c (16, 8). The elements are spread over a warp as
/// the instruction mma.m16n8k8 defines.
__device__ void multiply_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
#endif

unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// Squared distances. A team of eight lanes computes one row: lane j adds the columns j, j + 8, ...
// The lanes are then added in the CPU's order (`squared_distance` in scores_inl.h).

constexpr int kTeam = 8, kTeams = kThreads / kTeam;

/// Sets square[c] to |row - point[c]|^2, for every lane of the team.
template <int kCount>
__device__ void squared_distances(const float* row, const double* const (&point)[kCount],
                                  int64_t dim, int lane, double (&square)[kCount]) {
#pragma unroll
  for (int c = 0; c < kCount; ++c) square[c] = 0;
  for (int64_t p = lane; p < dim; p += kTeam) {
    const double x = row[p];
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      const double difference = x - point[c][p];
      square[c] = fma(difference, difference, square[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < kCount; ++c)
    for (int offset = kTeam / 2; offset > 0; offset /= 2)
      square[c] += __shfl_xor_sync(~0u, square[c], offset);
}

using Use = CudaSquares::Use;

/// One block for each shard. Points are taken kCount at a time.
template <Use kUse, int kCount>
__global__ void __launch_bounds__(kThreads) squares_kernel(CudaSquares p) {
  __shared__ double terms[kShard];
  const int64_t first = int64_t{blockIdx.x} * kShard;
  const int rows = static_cast<int>(p.rows - first < kShard ? p.rows - first : kShard);
  const int lane = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
  const int64_t count = kUse == Use::kLabels || kUse == Use::kWeights ? 1 : p.count;
  for (int64_t c = 0; c < count; c += kCount) {
    for (int begin = 0; kUse != Use::kWeights && begin < rows; begin += kTeams) {
      const int i = begin + team;
      const int64_t row = first + (i < rows ? i : rows - 1);
      const double* point[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int64_t last = p.count - 1;
        point[k] = p.points + (kUse == Use::kLabels ? p.label[row]
                               : c + k < last       ? c + k
                                                    : last) *
                                  p.dim;
      }
      double square[kCount];
      squared_distances<kCount>(p.x + row * p.dim, point, p.dim, lane, square);
      if (lane > 0 || i >= rows) continue;
      if constexpr (kUse == Use::kNorms) {
        p.norm[row] = static_cast<float>(sqrt(square[0]) * (1 + 0x1p-22));
        terms[i] = square[0];
      } else if constexpr (kUse == Use::kLabels) {
        terms[i] = p.squares[row] = square[0];
      } else {
        double closest = p.squares[row];
#pragma unroll
        for (int k = 0; k < kCount; ++k) closest = fmin(closest, square[k]);
        terms[i] = p.squares[row] = closest;
      }
    }
    __syncthreads();
    if (threadIdx.x == 0 && c + kCount >= count) {  // all points are included
      double sum = 0;
      if constexpr (kUse == Use::kWeights) {
        for (int i = 0; i < rows; ++i) sum += p.weight[first + i];
      } else if (p.weight != nullptr) {
#pragma unroll 8
        for (int i = 0; i < rows; ++i) sum = fma(p.weight[first + i], terms[i], sum);
      } else {
#pragma unroll 8
        for (int i = 0; i < rows; ++i) sum += terms[i];
      }
      p.sums[blockIdx.x] = sum;
    }
    __syncthreads();
  }
}

// Sums along the tree of TreeSum. A unit is an aligned block of `stride` shards.

constexpr int kUnits = 32, kTreeThreads = 128;

/// Adds the sums of kUnits units, for one element per thread. Only units that lie completely within
/// the shards are added, in pairs of equal size.
__global__ void __launch_bounds__(kTreeThreads)
    tree_kernel(double* sums, int64_t place, int64_t shards, int64_t width, int64_t stride) {
  const int64_t element = int64_t{blockIdx.x} * kTreeThreads + threadIdx.x;
  if (element >= width) return;
  const int64_t end = place + shards, span = kUnits * stride;
  for (int64_t group = place / span + blockIdx.y; group * span < end; group += gridDim.y) {
    const int64_t begin = group * span;
    const auto is_whole = [&](int unit, int units) {
      const int64_t from = begin + unit * stride;
      return from >= place && from + units * stride <= end;
    };
    const auto at = [&](int unit) {
      return sums + (begin + unit * stride - place) * width + element;
    };
    double v[kUnits];
#pragma unroll
    for (int j = 0; j < kUnits; ++j) v[j] = is_whole(j, 1) ? *at(j) : 0;
#pragma unroll
    for (int size = 1; size < kUnits; size *= 2)
#pragma unroll
      for (int j = 0; j < kUnits; j += 2 * size)
        if (is_whole(j, 2 * size)) v[j] += v[j + size];
#pragma unroll
    for (int j = 0; j < kUnits; j += 2)
      if (is_whole(j, 2) && (j == 0 || !is_whole(0, kUnits))) *at(j) = v[j];
  }
}

// Nearest centres. Scores and their error bound are explained in scores_inl.h. The scalar product y
// d of a score is the sum of three TF32 products. Both factors are split: y = hi + lo + rest and
// d = hi' + lo' + rest. The products are hi hi', hi lo' and lo hi'. Errors, in units of u |y| |d|
// with u = 2^-24:
//   - the rest of y and d, and lo lo': 12.1 (each is at most 2^-22 |y| |d|, plus 0.1 for their
//     products);
//   - the sum hi hi': an instruction adds eight products and an accumulator. Tensor cores truncate,
//     so each of the nine terms may lose 2 u of the largest partial sum: 18 per 8 columns;
//   - the two small sums: 2^-10 of this;
//   - all other roundings that scores_inl.h counts: 8.
// So a score has at most 2.3 D' + 21 roundings, where D' is D rounded up to kCudaDepth.

double roundings_of(int64_t dim) { return 2.3 * static_cast<double>(padded_dim(dim)) + 21; }

constexpr float kUnderflow = 1e-34f;  // upper bound of the error from products that underflow

struct Bound {
  double g;       ///< relative error of a score (scores_inl.h)
  float twice_g;  ///< 2 g, rounded up
  __device__ float doubt(float norm, float length) const {
    return twice_g * length * (2 * norm + length) + kUnderflow;
  }
};

Bound bound_of(int64_t dim) {
  constexpr double kUnit = 0x1p-24;
  const double roundings = roundings_of(dim) * kUnit;
  const double g =
      roundings < 0.5 ? roundings / (1 - roundings) : std::numeric_limits<double>::infinity();
  return {g, static_cast<float>(2 * g * (1 + 4 * kUnit))};
}

/// One warp for each centre and for each column of the padding.
__global__ void __launch_bounds__(kWarp)
    pack_kernel(CudaAssign p, Bound bound, int64_t depth, int64_t stride) {
  const int64_t c = blockIdx.x;
  const auto lane = static_cast<int>(threadIdx.x);
  const bool is_centre = c < p.num_centres;
  double square = 0;
  for (int64_t i = lane; i < depth; i += kWarp) {
    const double d =
        is_centre && i < p.dim ? p.centres[c * p.dim + i] - static_cast<double>(p.shift[i]) : 0;
    square = fma(d, d, square);
    p.packed[i * stride + c] = static_cast<float>(d);
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    square += __shfl_xor_sync(~0u, square, offset);
  if (lane > 0) return;
  constexpr double kUnit = 0x1p-24;
  const double length = sqrt(square);
  p.slope[c] = is_centre ? static_cast<float>(-2 * bound.g * length * (1 + 4 * kUnit)) : 0;
  p.base[c] = is_centre ? static_cast<float>(square - bound.g * square) - kUnderflow : HUGE_VALF;
  p.length[c] = static_cast<float>(length * (1 + 2 * kUnit));
  if (c == 0) *p.num_doubtful = 0;
}

/// Lowest and second lowest score of a row, and the centre with the lowest one.
struct Nearest {
  float best, second;
  int32_t index;

  __device__ void take(float score, int32_t centre) {
    second = fminf(second, fmaxf(score, best));
    if (score < best) {
      best = score;
      index = centre;
    }
  }
  __device__ void join(float other_best, float other_second, int32_t other_index) {
    second = fminf(fminf(second, other_second), fmaxf(best, other_best));
    if (other_best < best) {
      best = other_best;
      index = other_index;
    }
  }
};

constexpr int kTileRows = 128, kTileCentres = static_cast<int>(kCudaCentres),
              kDepth = static_cast<int>(kCudaDepth);
// Paddings keep the shared loads of a warp in different banks.
constexpr int kRowStride = kDepth + 4, kCentreStride = kTileCentres + 8;

/// Returns four neighbours; those from `left` on are zeros. `whole` may be true only if left <= 0
/// or left >= 4, and `from` is aligned to 16 bytes.
__device__ float4 load_four(const float* from, int64_t left, bool whole) {
  if (left <= 0) return {0, 0, 0, 0};
  if (whole) return *reinterpret_cast<const float4*>(from);
  return {from[0], left > 1 ? from[1] : 0, left > 2 ? from[2] : 0, left > 3 ? from[3] : 0};
}

/// Splits x into two numbers of TF32, whose sum is x to 2^-22.
__device__ void split(float x, float& high, float& low) {
  high = to_tf32(x);
  low = to_tf32(x - high);
}

/// One block for kTileRows rows. Strips of kTileCentres centres and slices of kDepth columns pass
/// through shared memory, one slice ahead of the products. A warp computes 32 rows x 32 centres.
__global__ void __launch_bounds__(kThreads, 2)
    nearest_kernel(CudaAssign p, Bound bound, int slices, int strips) {
  __align__(16) __shared__ float row_slice[2][kTileRows][kRowStride];
  __align__(16) __shared__ float centre_slice[2][kDepth][kCentreStride];
  // Row 8 i + group of the warp. In registers, these would be spilled.
  __shared__ Nearest nearest_of[4][kThreads];
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp, group = lane / 4, quad = lane % 4;
  const int warp_row = warp % 4 * 32, warp_centre = warp / 4 * 32;
  const int64_t first = int64_t{blockIdx.x} * kTileRows;
  const int64_t stride = int64_t{strips} * kTileCentres;
  const bool whole = p.dim % 4 == 0;

  // Loads of the next slice, in registers until the current one is done.
  constexpr int kRowLoads = kTileRows * kDepth / 4 / kThreads;
  static_assert(kTileCentres * kDepth / 4 == kThreads);
  float4 next_rows[kRowLoads], next_centres;
  const auto load = [&](int strip, int slice) {
    const int column = slice * kDepth;
#pragma unroll
    for (int v = 0; v < kRowLoads; ++v) {
      const int i = thread + v * kThreads, at = column + i % 4 * 4;
      const int64_t row = first + i / 4, left = p.dim - at;
      const float4 x = load_four(p.x + (row < p.rows ? row : p.rows - 1) * p.dim + at, left, whole),
                   s = load_four(p.shift + at, left, false);
      next_rows[v] = {x.x - s.x, x.y - s.y, x.z - s.z, x.w - s.w};
    }
    next_centres = *reinterpret_cast<const float4*>(p.packed + (column + thread / 16) * stride +
                                                    strip * kTileCentres + thread % 16 * 4);
  };
  const auto store = [&](int side) {
#pragma unroll
    for (int v = 0; v < kRowLoads; ++v) {
      const int i = thread + v * kThreads;
      *reinterpret_cast<float4*>(&row_slice[side][i / 4][i % 4 * 4]) = next_rows[v];
    }
    *reinterpret_cast<float4*>(&centre_slice[side][thread / 16][thread % 16 * 4]) = next_centres;
  };

  const auto row_at = [&](int i) { return first + warp_row + 8 * i + group; };
  const auto norm_at = [&](int i) { return p.norm[row_at(i) < p.rows ? row_at(i) : p.rows - 1]; };
  for (int i = 0; i < 4; ++i) nearest_of[i][thread] = {HUGE_VALF, HUGE_VALF, 0};
  float large[2][4][4] = {}, small[2][4][4] = {};
  load(0, 0);
  store(0);
  __syncthreads();
  int side = 0;
  for (int strip = 0, slice = 0; strip < strips; side ^= 1) {
    const bool ends = slice == slices - 1;  // the scores of the strip will be complete
    const int next_strip = ends ? strip + 1 : strip, next_slice = ends ? 0 : slice + 1;
    if (next_strip < strips) load(next_strip, next_slice);
#pragma unroll 1
    for (int k = 0; k < kDepth; k += 8) {
      float a_high[2][4], a_low[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          split(row_slice[side][warp_row + 16 * m + i % 2 * 8 + group][k + i / 2 * 4 + quad],
                a_high[m][i], a_low[m][i]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float b_high[2], b_low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
          split(centre_slice[side][k + i * 4 + quad][warp_centre + 8 * n + group], b_high[i],
                b_low[i]);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_tf32(small[m][n], a_low[m], b_high);
          multiply_tf32(small[m][n], a_high[m], b_low);
          multiply_tf32(large[m][n], a_high[m], b_high);
        }
      }
    }
    if (ends) {
      const int begin = strip * kTileCentres + warp_centre + 2 * quad;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float norm = norm_at(i);
        Nearest nearest = nearest_of[i][thread];
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int centre = begin + 8 * n + j;
            float &product = large[i / 2][n][i % 2 * 2 + j], &rest = small[i / 2][n][i % 2 * 2 + j];
            nearest.take(fmaf(-2, product + rest, fmaf(p.slope[centre], norm, p.base[centre])),
                         centre);
            product = rest = 0;
          }
        nearest_of[i][thread] = nearest;
      }
    }
    if (next_strip < strips) store(side ^ 1);
    __syncthreads();
    strip = next_strip;
    slice = next_slice;
  }

  for (int i = 0; i < 4; ++i) {
    Nearest nearest = nearest_of[i][thread];
    for (int offset = 1; offset < 4; offset *= 2)
      nearest.join(__shfl_xor_sync(~0u, nearest.best, offset),
                   __shfl_xor_sync(~0u, nearest.second, offset),
                   __shfl_xor_sync(~0u, nearest.index, offset));
    nearest_of[i][thread] = nearest;
  }
  __syncthreads();
  if (warp_centre > 0 || quad > 0) return;
  for (int i = 0; i < 4; ++i) {
    const int64_t row = row_at(i);
    if (row >= p.rows) continue;
    Nearest nearest = nearest_of[i][thread];
    const Nearest other = nearest_of[i][thread + kThreads / 2];  // the other 32 centres
    nearest.join(other.best, other.second, other.index);
    p.fresh[row] = nearest.index;
    const float limit = nearest.best + bound.doubt(norm_at(i), p.length[nearest.index]);
    if (limit < nearest.second) continue;
    const uint32_t at = atomicAdd(p.num_doubtful, 1u);
    p.doubtful[at] = static_cast<uint32_t>(row);
    p.limit[at] = limit;
  }
}

/// Returns |x - centre|^2 with the bits of the CPU.
__device__ double squared_distance(const float* x, const double* centre, int64_t dim) {
  double s[8] = {};
  for (int64_t p = 0; p < dim; p += 8)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (p + j >= dim) continue;
      const double difference = x[p + j] - centre[p + j];
      s[j] = fma(difference, difference, s[j]);
    }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

constexpr int kSettleThreads = 128, kSettleBlocks = 2048;

/// One warp for each doubtful row, and one lane for each centre. Scores in float32 exclude most
/// centres. The others are compared in float64. Among equally near ones, the first is taken.
__global__ void __launch_bounds__(kSettleThreads) settle_kernel(CudaAssign p, int64_t stride) {
  constexpr int kRowsAtATime = kSettleThreads / kWarp;
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t count = *p.num_doubtful;
  for (int64_t i = int64_t{blockIdx.x} * kRowsAtATime + threadIdx.x / kWarp; i < count;
       i += int64_t{gridDim.x} * kRowsAtATime) {
    const int64_t row = p.doubtful[i];
    const float limit = p.limit[i], norm = p.norm[row];
    const float* x = p.x + row * p.dim;
    double nearest = HUGE_VAL;
    int32_t index = INT32_MAX;
    for (int64_t begin = 0; begin < p.num_centres; begin += kWarp) {
      const int64_t c = begin + lane;
      float product = 0;
      for (int64_t j = 0; j < p.dim; ++j)
        product = fmaf(x[j] - p.shift[j], p.packed[j * stride + c], product);
      const float score = fmaf(-2, product, fmaf(p.slope[c], norm, p.base[c]));
      if (c >= p.num_centres || score > limit) continue;  // scores that overflow exclude nothing
      const double square = squared_distance(x, p.centres + c * p.dim, p.dim);
      if (square < nearest) {
        nearest = square;
        index = static_cast<int32_t>(c);
      }
    }
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const double other = __shfl_xor_sync(~0u, nearest, offset);
      const int32_t other_index = __shfl_xor_sync(~0u, index, offset);
      if (other < nearest || (other == nearest && other_index < index)) {
        nearest = other;
        index = other_index;
      }
    }
    if (lane == 0) p.fresh[row] = index == INT32_MAX ? 0 : index;
  }
}

// Sums of the rows with each label. A block sorts the rows of a shard by (label, row).
// Then it adds each run of one label in the order of its rows.

/// Sorts the keys of a block in ascending order (Batcher's bitonic sort).
__device__ void sort_keys(uint64_t (&key)[kShard]) {
  for (int size = 2; size <= kShard; size *= 2)
    for (int apart = size / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (int pair = static_cast<int>(threadIdx.x); pair < kShard / 2; pair += kThreads) {
        const int i = pair / apart * 2 * apart + pair % apart, j = i + apart;
        const uint64_t a = key[i], b = key[j];
        if ((a > b) == ((i & size) == 0)) {
          key[i] = b;
          key[j] = a;
        }
      }
    }
  __syncthreads();
}

/// Lists the runs of equal labels among the first `rows` keys: head[r] is the first position of run
/// r. After the last one follows `rows`. Returns the number of runs.
__device__ int find_runs(const uint64_t (&key)[kShard], int rows, int (&head)[kShard + 1],
                         int (&of_warp)[kWarps]) {
  constexpr int kEach = kShard / kThreads;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  const auto is_head = [&](int i) {
    return i < rows && (i == 0 || key[i] >> kShardBits != key[i - 1] >> kShardBits);
  };
  int count = 0;
  for (int i = thread * kEach; i < (thread + 1) * kEach; ++i) count += is_head(i) ? 1 : 0;
  int upto = count;  // over the lanes up to this one
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int before = __shfl_up_sync(~0u, upto, offset);
    if (lane >= offset) upto += before;
  }
  if (lane == kWarp - 1) of_warp[warp] = upto;
  __syncthreads();
  int next = upto - count, runs = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) next += of_warp[w];
    runs += of_warp[w];
  }
  for (int i = thread * kEach; i < (thread + 1) * kEach; ++i)
    if (is_head(i)) head[next++] = i;
  if (thread == 0) head[runs] = rows;
  __syncthreads();
  return runs;
}

/// One block for each shard. A warp adds 32 columns of one run.
__global__ void __launch_bounds__(kThreads)
    sums_kernel(CudaAssign p, int64_t first_shard, double* sums) {
  __shared__ uint64_t key[kShard];
  __shared__ int head[kShard + 1], of_warp[kWarps];
  __shared__ int changed;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  const int64_t first = (first_shard + blockIdx.x) * kShard;
  const int rows = static_cast<int>(p.rows - first < kShard ? p.rows - first : kShard);
  const int64_t width = p.num_centres * p.dim + p.num_centres + 1;
  double* to = sums + blockIdx.x * width;
  double* counts = to + p.num_centres * p.dim;
  if (thread == 0) changed = 0;
  __syncthreads();
  int mine = 0;
  for (int i = thread; i < kShard; i += kThreads) {
    if (i >= rows) {
      key[i] = ~uint64_t{0};
      continue;
    }
    const int32_t label = p.fresh[first + i];
    mine += p.label[first + i] != label ? 1 : 0;
    p.label[first + i] = label;
    key[i] = static_cast<uint64_t>(label) << kShardBits | static_cast<uint64_t>(i);
  }
  if (mine > 0) atomicAdd(&changed, mine);
  sort_keys(key);
  const int runs = find_runs(key, rows, head, of_warp);
  const int64_t chunks = (p.dim + kWarp - 1) / kWarp;
  for (int64_t item = warp; item < runs * chunks; item += kWarps) {
    const auto run = static_cast<int>(item / chunks);
    const int64_t column = item % chunks * kWarp + lane;
    const int begin = head[run], end = head[run + 1];
    const auto label = static_cast<int64_t>(key[begin] >> kShardBits);
    const int64_t next =
        run + 1 < runs ? static_cast<int64_t>(key[end] >> kShardBits) : p.num_centres;
    if (column < p.dim) {
      double sum = 0;
#pragma unroll 8
      for (int i = begin; i < end; ++i) {
        const int64_t row = first + static_cast<int64_t>(key[i] & (kShard - 1));
        const double x = p.x[row * p.dim + column];
        sum = p.weight == nullptr ? sum + x : fma(x, p.weight[row], sum);
      }
      to[label * p.dim + column] = sum;
      for (int64_t k = run == 0 ? 0 : label + 1; k < next; ++k)
        if (k != label) to[k * p.dim + column] = 0;
    }
    if (item % chunks > 0) continue;
    for (int64_t k = (run == 0 ? 0 : label) + lane; k < next; k += kWarp) {
      double count = 0;
      if (k == label && p.weight == nullptr) count = end - begin;
      for (int i = begin; k == label && p.weight != nullptr && i < end; ++i)
        count += p.weight[first + static_cast<int64_t>(key[i] & (kShard - 1))];
      counts[k] = count;
    }
  }
  if (thread == 0) counts[p.num_centres] = changed;
}

}  // namespace

void squares(const CudaSquares& p, Stream stream) {
  const unsigned shards = blocks_for(p.rows, kShard);
  switch (p.use) {
    case Use::kNorms:
      queue(squares_kernel<Use::kNorms, 1>, shards, kThreads, stream, p);
      break;
    case Use::kLabels:
      queue(squares_kernel<Use::kLabels, 1>, shards, kThreads, stream, p);
      break;
    case Use::kInclude:
      queue(squares_kernel<Use::kInclude, 4>, shards, kThreads, stream, p);
      break;
    case Use::kWeights:
      queue(squares_kernel<Use::kWeights, 1>, shards, kThreads, stream, p);
      break;
  }
}

void nearest(const CudaAssign& p, Stream stream) {
  const Bound bound = bound_of(p.dim);
  const int64_t depth = padded_dim(p.dim), stride = padded_centres(p.num_centres);
  queue(pack_kernel, static_cast<unsigned>(stride), kWarp, stream, p, bound, depth, stride);
  queue(nearest_kernel, blocks_for(p.rows, kTileRows), kThreads, stream, p, bound,
        static_cast<int>(depth / kCudaDepth), static_cast<int>(stride / kCudaCentres));
  queue(settle_kernel, std::min<unsigned>(kSettleBlocks, blocks_for(p.rows, 4)), kSettleThreads,
        stream, p, stride);
}

void sums(const CudaAssign& p, int64_t first, int64_t shards, double* sums, Stream stream) {
  queue(sums_kernel, static_cast<unsigned>(shards), kThreads, stream, p, first, sums);
}

void add_tree(double* sums, int64_t place, int64_t shards, int64_t width, Stream stream) {
  for (int64_t stride = 1; 2 * stride <= shards; stride *= kUnits) {
    const int64_t span = kUnits * stride;
    const int64_t groups = (place + shards - 1) / span - place / span + 1;
    queue(tree_kernel,
          dim3(blocks_for(width, kTreeThreads),
               static_cast<unsigned>(std::min<int64_t>(groups, 65535))),
          kTreeThreads, stream, sums, place, shards, width, stride);
  }
}

}  // namespace dovetail::fit::cuda
