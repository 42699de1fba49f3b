#include "dovetail/embedding/cuda/launch.h"
#include "dovetail/embedding/cuda/row.cuh"
#include "dovetail/ops/cuda/queue.cuh"

// Roofline of move_kernel: a record that comes is read and written once, and so is one that leaves.
// The transfers before and after it carry the same records over the bus, at a sixtieth of the
// memory's bandwidth. So the kernel has no share in the time of a move.
//
// tests/embedding/kernels_test.cpp compiles this file for a CPU.

namespace dovetail::embedding::cuda {
#ifdef __CUDACC__
using ops::cuda::queue;
#endif
namespace {

constexpr int kLanes = 32;
/// Maximum blocks of the kernel. A block loops over further moves.
constexpr int64_t kMoveBlocks = 1 << 12;

/// Moves `bytes` bytes through a part of a slot, as words of one size. A lane handles the same
/// words of all arrays. So each word leaves before another comes.
template <class Word>
__device__ void move_words(char* slot, int64_t bytes, const char* in, bool zeros, char* out,
                           int lane) {
  auto* here = reinterpret_cast<Word*>(slot);
  for (int64_t i = lane; i < bytes / static_cast<int64_t>(sizeof(Word)); i += kLanes) {
    if (out != nullptr) reinterpret_cast<Word*>(out)[i] = here[i];
    if (in != nullptr) here[i] = reinterpret_cast<const Word*>(in)[i];
    if (zeros) here[i] = Word{};
  }
}

/// Moves with the largest words to which slots of `bytes` bytes are aligned.
__device__ void move_bytes(char* slot, int64_t bytes, const char* in, bool zeros, char* out,
                           int lane) {
  if (bytes % static_cast<int64_t>(sizeof(float4)) == 0) {
    move_words<float4>(slot, bytes, in, zeros, out, lane);
  } else if (bytes % static_cast<int64_t>(sizeof(uint32_t)) == 0) {
    move_words<uint32_t>(slot, bytes, in, zeros, out, lane);
  } else {
    move_words<uint16_t>(slot, bytes, in, zeros, out, lane);
  }
}

/// One warp for each move.
__global__ void __launch_bounds__(kThreads) move_kernel(CudaMoveProblem p) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes,
                warps = int64_t{gridDim.x} * (kThreads / kLanes);
  for (int64_t i = first; i < p.count; i += warps) {
    const CudaRowMove move = p.moves[i];
    const CudaTable& table = p.pack.tables[move.table];
    const int64_t state_at = padded(table.row_bytes),
                  state_bytes = table.state_width * static_cast<int64_t>(sizeof(float));
    const bool zeros = move.in == CudaRowMove::kZeros, comes = move.in >= 0;
    const char* in = comes ? p.in + move.in : nullptr;
    char* out = move.out >= 0 ? p.out + move.out : nullptr;
    move_bytes(table.rows + move.slot * table.row_bytes, table.row_bytes, in, zeros, out, lane);
    move_bytes(reinterpret_cast<char*>(table.state + move.slot * table.state_width), state_bytes,
               comes ? in + state_at : nullptr, zeros, out == nullptr ? nullptr : out + state_at,
               lane);
    if (lane == 0 && comes && p.row_of != nullptr) p.row_of[table.first_row + move.slot] = move.row;
  }
}

}  // namespace

void move(const CudaMoveProblem& p, cudaStream_t stream) {
  queue(move_kernel, blocks_for(p.count * kLanes, kMoveBlocks), kThreads, stream, p);
}

}  // namespace dovetail::embedding::cuda
