#pragma once

#include <cstdint>
#include <string>

namespace dovetail {

/// Device files of NVIDIA's driver, one a GPU.
int count_gpu_device_files();

/// Makes torch's CUDA library part of this process where there is a GPU: runs on CPUs alone need
/// not pay the second and the gigabytes of address space that it costs. Returns an empty text if a
/// GPU can be used, else the reason. Call before any other use of torch's CUDA interface: torch
/// looks for its CUDA library only once.
std::string load_gpu();

/// GPUs that this process can use, after `load_gpu` returned an empty text.
int count_gpus();
/// Makes GPU `index` (from 0) the current one of this thread.
void use_gpu(int index);

/// Gives this thread a stream of its own on the current GPU in place of the default one, which no
/// graph can record. Work of other threads on the default stream is then not ordered with this
/// thread's.
void use_own_stream();

/// Memory of the GPU in use, after `load_gpu` returned an empty text. The peak is that of the
/// caching allocator's allocated bytes since the last reset.
struct GpuMemory {
  uint64_t free_bytes = 0, total_bytes = 0, allocated_bytes = 0, peak_bytes = 0;
};
GpuMemory gpu_memory();
/// Bytes that the caching allocator has given out; unlike `gpu_memory` without a call of the
/// driver.
uint64_t gpu_allocated_bytes();
void reset_gpu_peak();
/// Waits until the GPU has done all that was asked of it.
void synchronize_gpu();

}  // namespace dovetail
