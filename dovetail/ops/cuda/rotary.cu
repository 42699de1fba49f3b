#include <algorithm>
#include <limits>
#include <stdexcept>

#include "dovetail/ops/cuda/launch.h"
#include "dovetail/ops/cuda/values.cuh"

namespace dovetail::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBatchBlocks = 65535;  // limit of the grid in y

struct Parts {
  RotaryPart part[kMaxRotaryParts];
  int count;
};

/// Access to one neighbourhood of a head. It is 16 bytes, or one element if 16 bytes do not divide
/// heads or strides.
template <class T, bool kWide>
struct Access;
template <class T>
struct Access<T, true> {
  static constexpr int kCount = Values<T>::kCount;
  using Bits = uint4;
};
template <class T>
struct Access<T, false> {
  static constexpr int kCount = 1;
  using Bits = T;
};

/// Rotates heads; a thread moves one slot of a head. A slot is a pair of neighbourhoods that rotate
/// into each other, or one neighbourhood that is copied. Slots of all heads of all parts of a token
/// are adjacent. Roofline: each element is read and written once; the table comes from the caches.
template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(RotaryProblem p, Parts parts, unsigned slots, unsigned pairs,
                  unsigned items_per_token, unsigned items) {
  constexpr int kCount = Access<T, kWide>::kCount;
  using Bits = typename Access<T, kWide>::Bits;
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= items) return;
  const unsigned time = item / items_per_token, in_token = item % items_per_token;
  unsigned head = in_token / slots;
  const unsigned slot = in_token % slots;
  // Chosen without an index: an indexed struct would be stored in local memory.
  RotaryPart part = parts.part[0];
  if (parts.count > 1 && head >= part.heads) {
    head -= static_cast<unsigned>(part.heads);
    part = parts.part[1];
    if (parts.count > 2 && head >= part.heads) {
      head -= static_cast<unsigned>(part.heads);
      part = parts.part[2];
    }
  }
  const bool is_pair = slot < pairs;
  const int64_t half = p.rotary_dim / 2;
  const int64_t column =
      is_pair ? int64_t{slot} * kCount : p.rotary_dim + int64_t{slot - pairs} * kCount;
  for (int64_t b = blockIdx.y; b < p.batch; b += gridDim.y) {
    const T* from = static_cast<const T*>(part.from.data) + b * part.from.batch_stride +
                    time * part.from.time_stride + head * part.from.head_stride + column;
    T* to = static_cast<T*>(part.to.data) + b * part.to.batch_stride + time * part.to.time_stride +
            head * part.to.head_stride + column;
    Bits first_bits = *reinterpret_cast<const Bits*>(from);
    if (is_pair) {
      Bits second_bits = *reinterpret_cast<const Bits*>(from + half);
      if (part.rotated) {
        float cosine[kCount], sine[kCount];
        const float *cosines = p.cosine + time * half + column,
                    *sines = p.sine + time * half + column;
        if constexpr (kWide) {
#pragma unroll
          for (int i = 0; i < kCount; i += 4) {
            *reinterpret_cast<float4*>(cosine + i) = *reinterpret_cast<const float4*>(cosines + i);
            *reinterpret_cast<float4*>(sine + i) = *reinterpret_cast<const float4*>(sines + i);
          }
        } else {
          cosine[0] = cosines[0];
          sine[0] = sines[0];
        }
        T *first = reinterpret_cast<T*>(&first_bits), *second = reinterpret_cast<T*>(&second_bits);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const float a = to_float(first[i]), c = to_float(second[i]),
                      s = p.inverse ? -sine[i] : sine[i];
          first[i] = from_float<T>(a * cosine[i] - c * s);
          second[i] = from_float<T>(c * cosine[i] + a * s);
        }
      }
      *reinterpret_cast<Bits*>(to + half) = second_bits;
    }
    *reinterpret_cast<Bits*>(to) = first_bits;
  }
}

template <class View>
bool every_head_on_16_bytes(const View& x, int64_t count) {
  return on_16_bytes(x.data) && x.batch_stride % count == 0 && x.time_stride % count == 0 &&
         x.head_stride % count == 0;
}

}  // namespace

void rotate(const RotaryProblem& p, std::span<const RotaryPart> list, cudaStream_t stream) {
  Parts parts = {};
  int64_t heads = 0;
  for (const RotaryPart& part : list) {
    parts.part[parts.count++] = part;
    heads += part.heads;
  }
  if (heads == 0 || p.batch == 0 || p.length == 0 || p.head_dim == 0) return;
  with_storage(p.storage, [&](auto example) {
    using T = decltype(example);
    constexpr int kCount = Values<T>::kCount;
    bool wide = p.rotary_dim / 2 % kCount == 0 && p.head_dim % kCount == 0 &&
                on_16_bytes(p.cosine) && on_16_bytes(p.sine);
    for (const RotaryPart& part : list) {
      wide &= every_head_on_16_bytes(part.from, kCount) && every_head_on_16_bytes(part.to, kCount);
    }
    const int64_t count = wide ? kCount : 1, pairs = p.rotary_dim / 2 / count;
    const int64_t slots = pairs + (p.head_dim - p.rotary_dim) / count,
                  items = p.length * heads * slots;
    if (items > std::numeric_limits<int>::max())
      throw std::length_error(
          "rotary positions: one sequence of a batch is limited to 2^31 elements");
    const dim3 grid(static_cast<unsigned>((items + kThreads - 1) / kThreads),
                    static_cast<unsigned>(std::min(p.batch, kMaxBatchBlocks)));
    const auto kernel = wide ? rotate_kernel<T, true> : rotate_kernel<T, false>;
    kernel<<<grid, kThreads, 0, stream>>>(
        p, parts, static_cast<unsigned>(slots), static_cast<unsigned>(pairs),
        static_cast<unsigned>(heads * slots), static_cast<unsigned>(items));
  });
}

}  // namespace dovetail::ops::cuda
