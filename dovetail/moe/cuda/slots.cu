#include "dovetail/moe/cuda/launch.h"
#include "dovetail/ops/cuda/queue.cuh"

// Slots of choices, and rows of slots. tests/moe/route_kernels_test.cpp compiles this file for a
// CPU.

namespace dovetail::moe::cuda {
namespace {

#ifdef __CUDACC__
using ops::cuda::queue;
#endif

constexpr int32_t kNoKey = -1;  // choice that takes no slot
constexpr int32_t kNoSlot = -1;
constexpr int kSlotThreads = 256;

__device__ int32_t key_of(const SlotProblem& p, int64_t choice) {
  return p.out != nullptr && p.out[choice] ? kNoKey : p.expert[choice];
}

/// Ranks choices within their tile: writes slots as if the tile were the first one. Also writes how
/// many slots of each expert a tile takes.
__global__ void __launch_bounds__(kSlotTile) rank_in_tiles(SlotProblem p) {
  __shared__ int32_t keys[kSlotTile];
  const int64_t first = int64_t{blockIdx.x} * kSlotTile, left = p.sequence.size() - first;
  const int size = left < kSlotTile ? static_cast<int>(left) : kSlotTile,
            i = static_cast<int>(threadIdx.x);
  const int64_t choice = i < size ? p.sequence.choice(first + i) : 0;
  keys[i] = i < size ? key_of(p, choice) : kNoKey;
  __syncthreads();
  if (i >= size) return;
  const int32_t key = keys[i];
  if (key == kNoKey) {
    p.slot[choice] = kNoSlot;
    return;
  }
  const Equals equals = equal_keys(keys, size, i);
  p.slot[choice] = equals.before;
  if (equals.behind == 0) p.tile_counts[int64_t{blockIdx.x} * p.experts + key] = equals.before + 1;
}

/// Replaces each tile's count by the sum of the counts of all previous tiles. One block processes
/// one expert.
__global__ void __launch_bounds__(kSlotThreads) sum_tiles(SlotProblem p) {
  __shared__ int64_t sums[kSlotThreads];
  const int64_t expert = blockIdx.x, tiles = slot_tiles(p.sequence.size());
  const int thread = static_cast<int>(threadIdx.x);
  int64_t before = 0;
  for (int64_t first = 0; first < tiles; first += kSlotThreads) {
    const int64_t tile = first + thread;
    const int64_t own = tile < tiles ? p.tile_counts[tile * p.experts + expert] : 0;
    sums[thread] = own;
    __syncthreads();
    for (int offset = 1; offset < kSlotThreads; offset *= 2) {
      const int64_t added = thread >= offset ? sums[thread - offset] : 0;
      __syncthreads();
      sums[thread] += added;
      __syncthreads();
    }
    if (tile < tiles)
      p.tile_counts[tile * p.experts + expert] = static_cast<int32_t>(before + sums[thread] - own);
    before += sums[kSlotThreads - 1];
    __syncthreads();  // all threads read `sums` before the next round overwrites it
  }
  if (thread == 0) p.count[expert] = before;
}

__global__ void __launch_bounds__(kSlotTile) finish_slots(SlotProblem p) {
  const int64_t i = int64_t{blockIdx.x} * kSlotTile + threadIdx.x;
  if (i >= p.sequence.size()) return;
  const int64_t choice = p.sequence.choice(i);
  const int32_t key = key_of(p, choice);
  if (key == kNoKey) return;
  const int32_t slot = p.slot[choice] + p.tile_counts[int64_t{blockIdx.x} * p.experts + key];
  const int64_t k = p.sequence.k;
  const bool drawn = p.drawn != nullptr && choice % k == 1 && p.drawn[choice / k];
  p.slot[choice] = drawn || (p.capacity >= 0 && slot >= p.capacity) ? kNoSlot : slot;
}

__global__ void __launch_bounds__(kSlotThreads) sort_rows_kernel(RowsProblem p) {
  const int64_t choice = int64_t{blockIdx.x} * kSlotThreads + threadIdx.x;
  if (choice >= p.choices) return;
  if (p.rank[choice] < 0) {
    p.row[choice] = kNoSlot;
    return;
  }
  const int64_t row = p.begin[p.expert[choice]] + p.rank[choice];
  p.row[choice] = static_cast<int32_t>(row);
  p.choice[row] = choice;
  p.token[row] = static_cast<int32_t>(choice / p.k);
}

}  // namespace

void assign_slots(const SlotProblem& p, Stream stream) {
  const auto tiles = static_cast<unsigned>(slot_tiles(p.sequence.size()));
  queue(rank_in_tiles, tiles, kSlotTile, stream, p);
  queue(sum_tiles, static_cast<unsigned>(p.experts), kSlotThreads, stream, p);
  queue(finish_slots, tiles, kSlotTile, stream, p);
}

void sort_rows(const RowsProblem& p, Stream stream) {
  queue(sort_rows_kernel, static_cast<unsigned>((p.choices + kSlotThreads - 1) / kSlotThreads), kSlotThreads, stream, p);
}

}  // namespace dovetail::moe::cuda
