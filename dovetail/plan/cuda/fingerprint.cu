#include <algorithm>

#include "dovetail/plan/cuda/launch.h"

namespace dovetail::plan::cuda {
namespace {

using Word = unsigned long long;
constexpr int kThreads = 256, kWarp = 32;
constexpr int64_t kMostBlocks = 1024, kWord = sizeof(Word);
constexpr Word kOdd = 0x9E3779B97F4A7C15;

/// Mixes a word with its position. It is bijective in the word (the last steps of SplitMix64), so a
/// changed word always changes the result.
__device__ Word mix(Word word, int64_t position) {
  Word z = word ^ (static_cast<Word>(position + 1) * kOdd);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// Returns word `position`; bytes behind the end are zero.
__device__ Word word_at(const unsigned char* data, int64_t bytes, int64_t position) {
  Word word = 0;
  for (int64_t i = 0; i < kWord && position * kWord + i < bytes; ++i)
    word |= static_cast<Word>(data[position * kWord + i]) << (8 * i);
  return word;
}

/// Sums the mixed words of a memory. The order of the additions does not matter, so the sum is the
/// same on every GPU. kWide: reads 16 bytes at a time. Reads each byte once: 0.33 ms for 1 GB at 3
/// TB/s.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    fingerprint_kernel(const unsigned char* __restrict__ data, int64_t bytes, Word* sum) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x,
                stride = int64_t{gridDim.x} * kThreads;
  Word total = 0;
  int64_t begin = 0;  // words that were read 16 bytes at a time
  if constexpr (kWide) {
    const int64_t pairs = bytes / (2 * kWord);
    const auto* wide = reinterpret_cast<const ulonglong2*>(data);
    for (int64_t i = first; i < pairs; i += stride) {
      const ulonglong2 two = wide[i];
      total += mix(two.x, 2 * i) + mix(two.y, 2 * i + 1);
    }
    begin = 2 * pairs;
  }
  for (int64_t i = begin + first; i * kWord < bytes; i += stride)
    total += mix(word_at(data, bytes, i), i);
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    total += __shfl_down_sync(0xffffffff, total, lane);
  if (threadIdx.x % kWarp == 0) atomicAdd(sum, total);
}

}  // namespace

void add_fingerprint(const void* data, int64_t bytes, unsigned long long* sum,
                     cudaStream_t stream) {
  if (bytes <= 0) return;
  const int64_t words = (bytes + kWord - 1) / kWord;
  const auto blocks =
      static_cast<unsigned>(std::clamp<int64_t>(words / (4 * kThreads), 1, kMostBlocks));
  const auto* begin = static_cast<const unsigned char*>(data);
  if (reinterpret_cast<uintptr_t>(data) % (2 * kWord) == 0)
    fingerprint_kernel<true><<<blocks, kThreads, 0, stream>>>(begin, bytes, sum);
  else
    fingerprint_kernel<false><<<blocks, kThreads, 0, stream>>>(begin, bytes, sum);
}

}  // namespace dovetail::plan::cuda
