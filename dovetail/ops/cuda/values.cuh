#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "dovetail/ops/storage.h"

/// Transfer of values between memory, in FP32 or BF16, and registers, always FP32. Each access
/// moves 16 bytes: kCount neighbours.
namespace dovetail::ops::cuda {

/// The kCount numbers in 16 bytes of memory of type T, converted to FP32.
template <class T>
struct Values {
  static constexpr int kCount = 16 / sizeof(T);
  float v[kCount];
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// Loads kCount numbers; `from` must be aligned to 16 bytes.
template <class T>
__device__ Values<T> load_values(const T* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  const T* x = reinterpret_cast<const T*>(&bits);
  Values<T> values;
#pragma unroll
  for (int i = 0; i < Values<T>::kCount; ++i) values.v[i] = to_float(x[i]);
  return values;
}
/// Stores kCount numbers; `to` must be aligned to 16 bytes.
template <class T>
__device__ void store_values(const Values<T>& values, T* to) {
  uint4 bits;
  T* x = reinterpret_cast<T*>(&bits);
#pragma unroll
  for (int i = 0; i < Values<T>::kCount; ++i) x[i] = from_float<T>(values.v[i]);
  *reinterpret_cast<uint4*>(to) = bits;
}

inline bool on_16_bytes(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

/// Calls `f` with a value of the C++ type that `storage` names: float or __nv_bfloat16.
template <class F>
void with_storage(Storage storage, F f) {
  if (storage == Storage::kFloat32) {
    f(float());
  } else {
    f(__nv_bfloat16());
  }
}

}  // namespace dovetail::ops::cuda
