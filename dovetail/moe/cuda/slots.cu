#include "dovetail/moe/cuda/launch.h"
#include "dovetail/ops/cuda/queue.cuh"

// Slots of choices, and places of their rows. tests/moe/route_kernels_test.cpp compiles this file
// for a CPU.

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
/// many slots of each expert the tile takes.
__global__ void __launch_bounds__(kSlotTile) rank_in_tiles(SlotProblem p) {
  __shared__ int32_t keys[kSlotTile];
  const int64_t first = int64_t{blockIdx.x} * kSlotTile, left = p.sequence.size() - first;
  const int size = left < kSlotTile ? static_cast<int>(left) : kSlotTile,
            i = static_cast<int>(threadIdx.x);
  const int64_t choice = i < size ? p.sequence.choice(first + i) : 0;
  keys[i] = i < size ? key_of(p, choice) : kNoKey;
  int32_t* counts = p.tile_counts + int64_t{blockIdx.x} * p.experts;
  for (int64_t expert = i; expert < p.experts; expert += kSlotTile) counts[expert] = 0;
  __syncthreads();
  if (i >= size) return;
  const int32_t key = keys[i];
  if (key == kNoKey) {
    p.slot[choice] = kNoSlot;
    return;
  }
  const Equals equals = equal_keys(keys, size, i);
  p.slot[choice] = equals.before;
  if (equals.behind == 0) counts[key] = equals.before + 1;
}

/// Returns the sum of `own` over the previous threads of the block. `total` becomes the sum over
/// all.
__device__ int64_t sum_before(int64_t own, int64_t& total) {
  __shared__ int64_t sums[kSlotThreads];
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // the sums of the previous call have been read
  sums[thread] = own;
  __syncthreads();
  for (int offset = 1; offset < kSlotThreads; offset *= 2) {
    const int64_t added = thread >= offset ? sums[thread - offset] : 0;
    __syncthreads();
    sums[thread] += added;
    __syncthreads();
  }
  total = sums[kSlotThreads - 1];
  return sums[thread] - own;
}

/// Replaces each tile's count by the sum of the counts of all previous tiles. One block processes
/// one expert.
__global__ void __launch_bounds__(kSlotThreads) sum_tiles(SlotProblem p) {
  const int64_t expert = blockIdx.x, tiles = slot_tiles(p.sequence.size());
  int64_t before = 0;
  for (int64_t first = 0; first < tiles; first += kSlotThreads) {
    const int64_t tile = first + threadIdx.x;
    int64_t total;
    const int64_t here =
        sum_before(tile < tiles ? p.tile_counts[tile * p.experts + expert] : 0, total);
    if (tile < tiles)
      p.tile_counts[tile * p.experts + expert] = static_cast<int32_t>(before + here);
    before += total;
  }
  if (threadIdx.x == 0) p.count[expert] = before;
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

/// Sets the places of each expert. One block.
__global__ void __launch_bounds__(kSlotThreads) place_experts(RowsProblem p) {
  int64_t before = 0;
  for (int64_t first = 0; first < p.experts; first += kSlotThreads) {
    const int64_t expert = first + threadIdx.x;
    const int64_t size =
        expert >= p.experts ? 0
        : p.capacity > 0    ? p.capacity
                         : (p.count[expert] + p.spare + p.multiple - 1) / p.multiple * p.multiple;
    int64_t total;
    const int64_t begin = before + sum_before(size, total);
    if (expert < p.experts) {
      p.begin[expert] = begin;
      p.ends[expert] = static_cast<int32_t>(begin + size);
    }
    before += total;
  }
}

/// Returns true if no choice has the place.
__device__ bool is_spare(const RowsProblem& p, int64_t place) {
  int64_t low = 0, high = p.experts;  // the first expert that ends behind the place
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (p.ends[middle] > place) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low == p.experts || place - p.begin[low] >= p.count[low];
}

/// Fills one place if it is spare, and the places of one token's choices.
__global__ void __launch_bounds__(kSlotThreads) place_choices(RowsProblem p) {
  const int64_t i = int64_t{blockIdx.x} * kSlotThreads + threadIdx.x;
  if (i < p.places && is_spare(p, i)) {
    p.choice[i] = p.tokens * p.k;
    p.token[i] = 0;
  }
  if (i >= p.tokens) return;
  int32_t* places = p.places_of_token + i * p.k;
  for (int64_t j = 0; j < p.k; ++j) {
    const int64_t choice = i * p.k + j, rank = p.rank[choice];
    int32_t place = kNoSlot;
    if (rank >= 0 && (p.capacity == 0 || rank < p.capacity)) {
      place = static_cast<int32_t>(p.begin[p.expert[choice]] + rank);
      p.choice[place] = choice;
      p.token[place] = static_cast<int32_t>(i);
    }
    int64_t at = j;
    for (; at > 0 && places[at - 1] > place; --at) places[at] = places[at - 1];
    places[at] = place;
  }
}

}  // namespace

void assign_slots(const SlotProblem& p, Stream stream) {
  const auto tiles = static_cast<unsigned>(slot_tiles(p.sequence.size()));
  queue(rank_in_tiles, tiles, kSlotTile, stream, p);
  queue(sum_tiles, static_cast<unsigned>(p.experts), kSlotThreads, stream, p);
  queue(finish_slots, tiles, kSlotTile, stream, p);
}

void place_rows(const RowsProblem& p, Stream stream) {
  const int64_t threads = p.places > p.tokens ? p.places : p.tokens;
  queue(place_experts, 1u, kSlotThreads, stream, p);
  queue(place_choices, static_cast<unsigned>((threads + kSlotThreads - 1) / kSlotThreads),
        kSlotThreads, stream, p);
}

}  // namespace dovetail::moe::cuda
