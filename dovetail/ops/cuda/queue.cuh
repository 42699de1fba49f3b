#pragma once

/// Call of a kernel that a test can replace: tests/fit/cuda_on_cpu.h runs kernels on a CPU.
#ifdef __CUDACC__
#include <cuda_runtime_api.h>

namespace dovetail::ops::cuda {

/// Queues a kernel with `blocks` blocks of `threads` threads on a stream.
template <class... Parameters, class... Arguments>
void queue(void (*kernel)(Parameters...), dim3 blocks, int threads, cudaStream_t stream,
           const Arguments&... arguments) {
  kernel<<<blocks, threads, 0, stream>>>(arguments...);
}

}  // namespace dovetail::ops::cuda
#endif
