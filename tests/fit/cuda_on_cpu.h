#pragma once

#include <ucontext.h>

#include <array>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

/// Runs the source of CUDA kernels on one CPU thread, to test their logic where there is no GPU.
/// Include it before a .cu file, which must queue its kernels through a function `queue`. Each CUDA
/// thread is a coroutine. Blocks run one after another. Threads of a block switch at barriers and
/// at exchanges within a warp. It neither times kernels nor finds races between threads.
namespace cuda_on_cpu {

struct Index {
  unsigned x = 1, y = 1, z = 1;
  Index() = default;
  Index(unsigned x_size, unsigned y_size = 1) : x(x_size), y(y_size) {}
};

constexpr int kWarpLanes = 32;

/// Execution of one block.
class Block {
 public:
  Block(int threads, std::function<void()> body) : body_(std::move(body)) {
    static std::vector<std::vector<char>> stacks;  // shared by all blocks
    while (std::ssize(stacks) < threads) stacks.emplace_back(size_t{64} << 10);
    for (int i = 0; i < threads; ++i)
      fibers_.push_back(std::make_unique<Fiber>(stacks[static_cast<size_t>(i)]));
  }

  /// Runs all threads to their end. `place` is called with a thread's number when it goes on.
  void run(const std::function<void(int)>& place) {
    current_block = this;
    for (bool alive = true; alive;) {
      alive = false;
      for (size_t i = 0; i < fibers_.size(); ++i) {
        if (fibers_[i]->state != State::kReady) continue;
        current_ = static_cast<int>(i);
        place(current_);
        go_on(*fibers_[i]);
        alive = true;
      }
      release();
      for (const auto& fiber : fibers_) alive = alive || fiber->state == State::kReady;
    }
    for (const auto& fiber : fibers_)
      if (fiber->state != State::kDone) std::abort();  // a barrier that not all threads reach
  }

  void wait_for_block() { wait(State::kAtBarrier); }
  /// Waits until all lanes of `mask` that still run wait here.
  void wait_for_lanes(unsigned mask) {
    fibers_[static_cast<size_t>(current_)]->mask = mask;
    wait(State::kAtExchange);
  }
  int lane() const { return current_ % kWarpLanes; }
  /// Returns the values that the lanes of `mask` in the current warp exchange.
  template <class T>
  std::array<T, kWarpLanes> exchange(const T& mine, unsigned mask = ~0u) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Fiber::slot));
    std::memcpy(fibers_[static_cast<size_t>(current_)]->slot, &mine, sizeof(T));
    wait_for_lanes(mask);
    std::array<T, kWarpLanes> all = {};
    const size_t first = static_cast<size_t>(current_ / kWarpLanes * kWarpLanes);
    for (size_t i = 0; i < kWarpLanes && first + i < fibers_.size(); ++i)
      std::memcpy(&all[i], fibers_[first + i]->slot, sizeof(T));
    wait_for_lanes(mask);
    return all;
  }

  inline static Block* current_block = nullptr;

 private:
  enum class State { kReady, kAtBarrier, kAtExchange, kDone };
  struct Fiber {
    explicit Fiber(std::vector<char>& stack) {
      ::getcontext(&context);
      context.uc_stack.ss_sp = stack.data();
      context.uc_stack.ss_size = stack.size();
      ::makecontext(&context, &Block::enter, 0);
    }

    ucontext_t context = {};
    std::jmp_buf jump = {};
    bool begun = false;
    State state = State::kReady;
    unsigned mask = 0;  ///< lanes of the warp that an exchange waits for
    alignas(16) char slot[32] = {};
  };

  static void enter() {
    Block& block = *current_block;
    block.body_();
    block.fibers_[static_cast<size_t>(block.current_)]->state = State::kDone;
    std::longjmp(block.main_, 1);
  }
  // A context begins a thread. Later switches jump, since contexts make a system call each time.
  void go_on(Fiber& fiber) {
    if (_setjmp(main_) != 0) return;
    if (fiber.begun) std::longjmp(fiber.jump, 1);
    fiber.begun = true;
    ::setcontext(&fiber.context);
  }
  void wait(State state) {
    Fiber& fiber = *fibers_[static_cast<size_t>(current_)];
    fiber.state = state;
    if (_setjmp(fiber.jump) == 0) std::longjmp(main_, 1);
  }
  /// Lets threads go on whose barrier or exchange is complete.
  void release() {
    const auto waits = [&](size_t i, State state) {
      return fibers_[i]->state == state || fibers_[i]->state == State::kDone;
    };
    bool at_barrier = true;
    for (size_t i = 0; i < fibers_.size(); ++i)
      at_barrier = at_barrier && waits(i, State::kAtBarrier);
    std::vector<size_t> free;
    for (size_t i = 0; i < fibers_.size(); ++i) {
      bool complete = at_barrier;
      if (fibers_[i]->state == State::kAtExchange) {
        complete = true;
        const size_t first = i / kWarpLanes * kWarpLanes;
        for (size_t lane = 0; lane < kWarpLanes && first + lane < fibers_.size(); ++lane)
          if ((fibers_[i]->mask >> lane & 1) != 0)
            complete = complete && waits(first + lane, State::kAtExchange);
      }
      if (complete && fibers_[i]->state != State::kDone) free.push_back(i);
    }
    for (const size_t i : free) fibers_[i]->state = State::kReady;
  }

  std::function<void()> body_;
  std::jmp_buf main_ = {};
  std::vector<std::unique_ptr<Fiber>> fibers_;
  int current_ = 0;
};

}  // namespace cuda_on_cpu

using dim3 = cuda_on_cpu::Index;
inline cuda_on_cpu::Index threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
using cudaStream_t = void*;
using cudaError_t = int;

#define DOVETAIL_CUDA_ON_CPU
#define __host__
#define __global__ static
#define __device__
#define __shared__ static
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)

inline void __syncthreads() { cuda_on_cpu::Block::current_block->wait_for_block(); }
inline void __syncwarp(unsigned lanes) { cuda_on_cpu::Block::current_block->wait_for_lanes(lanes); }
inline void __threadfence() {}
template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int mask) {
  auto& block = *cuda_on_cpu::Block::current_block;
  return block.exchange(value, lanes)[static_cast<size_t>(block.lane() ^ mask)];
}
template <class T>
T __shfl_up_sync(unsigned lanes, T value, int offset) {
  auto& block = *cuda_on_cpu::Block::current_block;
  const int from = block.lane() - offset;
  return block.exchange(value, lanes)[static_cast<size_t>(from < 0 ? block.lane() : from)];
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline uint32_t __umulhi(uint32_t x, uint32_t y) {
  return static_cast<uint32_t>(uint64_t{x} * y >> 32);
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}

/// Runs a kernel with `blocks` blocks of `threads` threads.
template <class... Parameters, class Stream, class... Arguments>
void queue(void (*kernel)(Parameters...), dim3 blocks, int threads, Stream,
           const Arguments&... arguments) {
  gridDim = blocks;
  blockDim = dim3(static_cast<unsigned>(threads));
  for (unsigned y = 0; y < blocks.y; ++y)
    for (unsigned x = 0; x < blocks.x; ++x) {
      blockIdx.x = x;
      blockIdx.y = y;
      cuda_on_cpu::Block block(threads, [&] { kernel(arguments...); });
      block.run([](int thread) { threadIdx.x = static_cast<unsigned>(thread); });
    }
}

/// TF32 has 10 explicit bits. Ties are rounded away from zero.
inline float to_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x1000u) & ~0x1fffu;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

/// Instruction mma.m16n8k8: c (16, 8) += a (16, 8) b (8, 8). PTX ISA, section "Matrix fragments for
/// mma.m16n8k8", defines which lane holds which elements.
inline void multiply_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  struct Fragment {
    float a[4], b[2];
  } mine;
  std::memcpy(mine.a, a, sizeof(a));
  std::memcpy(mine.b, b, sizeof(b));
  auto& block = *cuda_on_cpu::Block::current_block;
  const auto all = block.exchange(mine);
  const int group = block.lane() / 4, quad = block.lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = group + i / 2 * 8, column = 2 * quad + i % 2;
    for (int k = 0; k < 8; ++k) {
      const auto a_lane = static_cast<size_t>(row % 8 * 4 + k % 4);
      const auto b_lane = static_cast<size_t>(column * 4 + k % 4);
      c[i] += all[a_lane].a[row / 8 + k / 4 * 2] * all[b_lane].b[k / 4];
    }
  }
}
