#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// Launchers: functions that queue kernels on a given stream. They use neither ATen nor torch's
/// streams, because a .cu file with ATen takes 39 s to compile.
namespace dovetail::plan::cuda {

/// Adds the hash of `bytes` of memory to `*sum`, in the GPU's memory. Wherever the bytes differ,
/// sums differ with probability 1 - 2^-64; one changed word always changes the sum.
void add_fingerprint(const void* data, int64_t bytes, unsigned long long* sum, cudaStream_t stream);

}  // namespace dovetail::plan::cuda
