#include "dovetail/moe/cuda/launch.h"
#include "dovetail/ops/cuda/block.cuh"
#include "dovetail/ops/cuda/values.cuh"

namespace dovetail::moe::cuda {
namespace {

using dovetail::ops::cuda::block_sum;
using dovetail::ops::cuda::from_float;
using dovetail::ops::cuda::to_float;
using dovetail::ops::cuda::with_storage;

constexpr int kThreads = 128;  // one block processes one row

template <class T>
__global__ void __launch_bounds__(kThreads) gather_kernel(PlacedRowsProblem problem) {
  const ops::GatherRowsProblem& p = problem.rows;
  const int64_t i = blockIdx.x, place = problem.place == nullptr ? i : problem.place[i];
  const T* x = static_cast<const T*>(p.x) + p.row[i] * p.width;
  const T* other = p.other == nullptr ? nullptr : static_cast<const T*>(p.other) + place * p.width;
  T* y = static_cast<T*>(p.y) + place * p.width;
  const float weight = p.weight == nullptr ? 1.0f : p.weight[i];
  float dot = 0;
  for (int64_t column = threadIdx.x; column < p.width; column += kThreads) {
    const float value = to_float(x[column]);
    if (other != nullptr) dot += value * to_float(other[column]);
    y[column] = from_float<T>(weight * value);
  }
  if (p.dots == nullptr) return;
  dot = block_sum<kThreads>(dot);
  if (threadIdx.x == 0) p.dots[i] = dot;
}

template <class T>
__global__ void __launch_bounds__(kThreads) sum_kernel(SumRowsProblem p) {
  const int64_t token = blockIdx.x;
  const int32_t* rows = p.row + token * p.k;
  for (int64_t column = threadIdx.x; column < p.width; column += kThreads) {
    float sum = 0;
    for (int64_t j = 0; j < p.k; ++j) {
      const int64_t row = rows[j];
      if (row < 0) continue;
      const int64_t place = p.place == nullptr ? row : p.place[row];
      const float value = to_float(static_cast<const T*>(p.x)[place * p.width + column]);
      sum += (p.weight == nullptr ? 1.0f : p.weight[row]) * value;
    }
    p.y[token * p.width + column] = sum;
  }
}

}  // namespace

void gather_rows(const PlacedRowsProblem& p, Stream stream) {
  with_storage(p.rows.storage, [&](auto example) {
    gather_kernel<decltype(example)>
        <<<static_cast<unsigned>(p.rows.rows), kThreads, 0, stream>>>(p);
  });
}

void sum_rows(const SumRowsProblem& p, Stream stream) {
  with_storage(p.storage, [&](auto example) {
    sum_kernel<decltype(example)><<<static_cast<unsigned>(p.tokens), kThreads, 0, stream>>>(p);
  });
}

}  // namespace dovetail::moe::cuda
