#include "dovetail/mx/cuda_kernels.h"

#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::mx {

const CudaKernels* cuda_kernels() {
  static const CudaKernels* const kernels = []() -> const CudaKernels* {
    void* entry = open_cuda_library(kCudaEntry);
    return entry == nullptr ? nullptr : reinterpret_cast<const CudaKernels* (*)()>(entry)();
  }();
  return kernels;
}

}  // namespace dovetail::mx
