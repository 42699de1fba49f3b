#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace dovetail {

/// Returns the number of NVIDIA device files (/dev/nvidia0, ...), one per GPU.
int count_gpu_device_files();

/// Loads torch's CUDA library if the machine has a GPU. The library takes a second to load and
/// gigabytes of address space, so CPU-only runs skip it. Returns an empty text if a GPU can be
/// used, else the reason why not. Call this before any other use of torch's CUDA interface, since
/// torch looks for its CUDA library only once.
std::string load_gpu();

/// Returns the number of GPUs that this process can use. Requires that `load_gpu` returned an empty
/// text.
int count_gpus();
/// Makes GPU `index` (from 0) the current GPU of this thread.
void use_gpu(int index);

/// Makes a stream from torch's pool the current stream of this thread, on the current GPU. Does
/// nothing if the current stream is not the default stream. CUDA graphs cannot record the default
/// stream. Afterwards, this thread's work is not ordered with respect to other threads' work on the
/// default stream.
void use_own_stream();

/// Returns x on `device`. A copy from the CPU to a GPU goes through pinned memory. A copy from
/// other memory would wait for all earlier work.
at::Tensor copied_to(const at::Tensor& x, at::Device device);

/// Memory of one GPU. The driver reports `free_bytes` and `total_bytes`. `allocated_bytes` counts
/// bytes that torch's caching allocator has handed out. `peak_bytes` is the maximum of
/// `allocated_bytes` since the last `reset_gpu_peak`.
struct GpuMemory {
  uint64_t free_bytes = 0, total_bytes = 0, allocated_bytes = 0, peak_bytes = 0;
};
/// Returns the memory of the current GPU. Requires that `load_gpu` returned an empty text.
GpuMemory gpu_memory();
/// Returns GpuMemory::allocated_bytes of the current GPU. Unlike `gpu_memory`, this makes no call
/// to the driver.
uint64_t gpu_allocated_bytes();
/// Sets the peak of the current GPU to the bytes now allocated.
void reset_gpu_peak();
/// Waits until the current GPU has completed all work that was launched on it.
void synchronize_gpu();

}  // namespace dovetail
