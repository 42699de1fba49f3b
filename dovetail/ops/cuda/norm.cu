#include <algorithm>

#include "dovetail/ops/cuda/block.cuh"
#include "dovetail/ops/cuda/launch.h"
#include "dovetail/ops/cuda/values.cuh"

namespace dovetail::cuda {
namespace {

constexpr int kRowThreads = 128;               // a row is one block's
constexpr int kColumns = 32, kRowsAtOnce = 8;  // threads of a block that sums columns
constexpr int64_t kRowsPerPart = 256, kMaxParts = 64;

template <class T>
__global__ void forward_kernel(NormProblem p, T* __restrict__ y) {
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.x) + row * p.width;
  const float scale = 1.0f / static_cast<float>(p.width);
  float mean = 0, squares = 0;
  if (p.centered) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < p.width; i += kRowThreads) sum += to_float(x[i]);
    mean = block_sum<kRowThreads>(sum) * scale;
  }
  for (int64_t i = threadIdx.x; i < p.width; i += kRowThreads) {
    const float d = to_float(x[i]) - mean;
    squares += d * d;
  }
  const float rstd = rsqrtf(block_sum<kRowThreads>(squares) * scale + p.eps);
  for (int64_t i = threadIdx.x; i < p.width; i += kRowThreads) {
    const float normal = (to_float(x[i]) - mean) * rstd * p.weight[i];
    y[row * p.width + i] = from_float<T>(p.bias ? normal + p.bias[i] : normal);
  }
  if (threadIdx.x == 0) {
    p.rstd[row] = rstd;
    if (p.centered) p.mean[row] = mean;
  }
}

/// With n the normalized row and g = dy * weight: dx = rstd (g - n mean(g n)), for layer norm less mean(g) too.
template <class T>
__global__ void input_gradient_kernel(NormProblem p, const T* __restrict__ dy_all, T* __restrict__ dx_all) {
  const int64_t row = blockIdx.x;
  const T *x = static_cast<const T*>(p.x) + row * p.width, *dy = dy_all + row * p.width;
  const float mean = p.centered ? p.mean[row] : 0.0f, rstd = p.rstd[row];
  float g_sum = 0, gn_sum = 0;
  for (int64_t i = threadIdx.x; i < p.width; i += kRowThreads) {
    const float g = to_float(dy[i]) * p.weight[i];
    g_sum += g;
    gn_sum += g * (to_float(x[i]) - mean) * rstd;
  }
  const float scale = 1.0f / static_cast<float>(p.width);
  const float gn_mean = block_sum<kRowThreads>(gn_sum) * scale,
              g_mean = p.centered ? block_sum<kRowThreads>(g_sum) * scale : 0.0f;
  for (int64_t i = threadIdx.x; i < p.width; i += kRowThreads) {
    const float n = (to_float(x[i]) - mean) * rstd, g = to_float(dy[i]) * p.weight[i];
    dx_all[row * p.width + i] = from_float<T>(rstd * (g - g_mean - n * gn_mean));
  }
}

/// partial[part][column] of dweight, and after all of these of dbias: sums over the part's rows.
template <class T>
__global__ void weight_gradient_kernel(NormProblem p, const T* __restrict__ dy, float* __restrict__ partial,
                                       int64_t rows_per_part) {
  __shared__ float sums[2][kRowsAtOnce][kColumns];
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x, part = blockIdx.y;
  const int64_t end = min(p.rows, (part + 1) * rows_per_part);
  float dweight = 0, dbias = 0;
  for (int64_t row = part * rows_per_part + threadIdx.y; column < p.width && row < end; row += kRowsAtOnce) {
    const float mean = p.centered ? p.mean[row] : 0.0f;
    const float d = to_float(dy[row * p.width + column]);
    dweight += d * (to_float(static_cast<const T*>(p.x)[row * p.width + column]) - mean) * p.rstd[row];
    dbias += d;
  }
  sums[0][threadIdx.y][threadIdx.x] = dweight;
  sums[1][threadIdx.y][threadIdx.x] = dbias;
  __syncthreads();
  if (threadIdx.y >= 2 || column >= p.width) return;
  float sum = 0;
  for (int r = 0; r < kRowsAtOnce; ++r) sum += sums[threadIdx.y][r][threadIdx.x];
  partial[(int64_t{threadIdx.y} * gridDim.y + part) * p.width + column] = sum;
}

__global__ void sum_parts_kernel(const float* __restrict__ partial, int64_t parts, int64_t width, float* dweight,
                                 float* dbias) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= width) return;
  float weight_sum = 0, bias_sum = 0;
  for (int64_t part = 0; part < parts; ++part) {
    weight_sum += partial[part * width + column];
    bias_sum += partial[(parts + part) * width + column];
  }
  dweight[column] = weight_sum;
  if (dbias) dbias[column] = bias_sum;
}

}  // namespace

void norm_forward(const NormProblem& p, void* y, cudaStream_t stream) {
  with_storage(p.storage, [&](auto example) {
    using T = decltype(example);
    forward_kernel<T><<<static_cast<unsigned>(p.rows), kRowThreads, 0, stream>>>(p, static_cast<T*>(y));
  });
}

void norm_input_gradient(const NormProblem& p, const void* dy, void* dx, cudaStream_t stream) {
  with_storage(p.storage, [&](auto example) {
    using T = decltype(example);
    input_gradient_kernel<T>
        <<<static_cast<unsigned>(p.rows), kRowThreads, 0, stream>>>(p, static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

int64_t norm_parts(int64_t rows) { return std::clamp((rows + kRowsPerPart - 1) / kRowsPerPart, int64_t{1}, kMaxParts); }

void norm_weight_gradient(const NormProblem& p, const void* dy, float* partial, float* dweight, float* dbias,
                          cudaStream_t stream) {
  const int64_t parts = norm_parts(p.rows), rows_per_part = (p.rows + parts - 1) / parts;
  const auto column_blocks = static_cast<unsigned>((p.width + kColumns - 1) / kColumns);
  with_storage(p.storage, [&](auto example) {
    using T = decltype(example);
    weight_gradient_kernel<T>
        <<<dim3(column_blocks, static_cast<unsigned>(parts)), dim3(kColumns, kRowsAtOnce), 0, stream>>>(
            p, static_cast<const T*>(dy), partial, rows_per_part);
  });
  const auto blocks = static_cast<unsigned>((p.width + kRowThreads - 1) / kRowThreads);
  sum_parts_kernel<<<blocks, kRowThreads, 0, stream>>>(partial, parts, p.width, dweight, dbias);
}

}  // namespace dovetail::cuda
