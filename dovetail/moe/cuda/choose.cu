#include <cmath>

#include "dovetail/moe/cuda/launch.h"
#include "dovetail/ops/cuda/block.cuh"

namespace dovetail::moe::cuda {
namespace {

using dovetail::ops::cuda::kWarp;

constexpr int kRowsAtOnce = 4;  // warps of a block; each warp processes one row
constexpr int kThreads = 128;
constexpr int64_t kNone = -1;

template <class T>
__device__ T score_at(const T* scores, const T* bias, int64_t column) {
  const T score = scores[column] + (bias != nullptr ? bias[column] : T(0));
  return isnan(score) ? -static_cast<T>(INFINITY) : score;
}

template <class T>
struct Entry {
  T value;
  int64_t column;  ///< kNone: empty entry

  __device__ bool before(const Entry& other) const {
    if (column == kNone || other.column == kNone) return column != kNone;
    return stands_before(value, column, other.value, other.column);
  }
};

/// Returns the first entry in sort order among the lanes of a warp, to every lane.
template <class T>
__device__ Entry<T> first_of_warp(Entry<T> entry) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Entry<T> other{__shfl_xor_sync(~0u, entry.value, offset),
                         __shfl_xor_sync(~0u, entry.column, offset)};
    if (other.before(entry)) entry = other;
  }
  return entry;
}

__device__ bool in_groups(const ChooseProblem& p, int64_t row, int64_t column) {
  if (p.groups == nullptr) return true;
  for (int64_t i = 0; i < p.top_groups; ++i)
    if (p.groups[row * p.top_groups + i] == column / p.group_size) return true;
  return false;
}

/// Each warp chooses the columns of one row. Round j finds the first entry in sort order after the
/// entry of round j - 1.
template <class T>
__global__ void __launch_bounds__(kThreads) choose_kernel(ChooseProblem p) {
  const int64_t row = int64_t{blockIdx.x} * kRowsAtOnce + threadIdx.y;
  if (row >= p.rows) return;
  const T* scores = static_cast<const T*>(p.scores) + row * p.columns;
  const T* bias = static_cast<const T*>(p.bias);
  Entry<T> last{T(0), kNone};
  for (int64_t j = 0; j < p.k; ++j) {
    Entry<T> best{T(0), kNone};
    for (int64_t column = threadIdx.x; column < p.columns; column += kWarp) {
      const Entry<T> entry{score_at(scores, bias, column), column};
      if ((last.column == kNone || last.before(entry)) && entry.before(best) &&
          in_groups(p, row, column))
        best = entry;
    }
    last = first_of_warp(best);
    if (threadIdx.x == 0) p.chosen[row * p.k + j] = static_cast<int32_t>(last.column);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) score_groups_kernel(GroupScoreProblem p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.rows * p.groups) return;
  const int64_t row = i / p.groups, first = i % p.groups * p.group_size;
  const T* scores = static_cast<const T*>(p.scores) + row * p.groups * p.group_size;
  T largest = -static_cast<T>(INFINITY), second = largest;
  for (int64_t column = first; column < first + p.group_size; ++column) {
    const T score = score_at(scores, static_cast<const T*>(p.bias), column);
    if (score > largest) {
      second = largest;
      largest = score;
    } else if (score > second) {
      second = score;
    }
  }
  static_cast<T*>(p.group_scores)[i] = p.summed == 2 ? largest + second : largest;
}

unsigned blocks(int64_t count, int64_t at_once) {
  return static_cast<unsigned>((count + at_once - 1) / at_once);
}

}  // namespace

void choose(const ChooseProblem& p, Stream stream) {
  const auto kernel = p.wide ? choose_kernel<double> : choose_kernel<float>;
  kernel<<<blocks(p.rows, kRowsAtOnce), dim3(kWarp, kRowsAtOnce), 0, stream>>>(p);
}

void score_groups(const GroupScoreProblem& p, Stream stream) {
  const auto kernel = p.wide ? score_groups_kernel<double> : score_groups_kernel<float>;
  kernel<<<blocks(p.rows * p.groups, kThreads), kThreads, 0, stream>>>(p);
}

}  // namespace dovetail::moe::cuda
