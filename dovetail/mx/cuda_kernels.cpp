#include "dovetail/mx/cuda_kernels.h"

#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::mx {

const CudaKernels* cuda_kernels() {
  static const auto* const kernels = ops::cuda_kernel_table<CudaKernels>(kCudaEntry);
  return kernels;
}

}  // namespace dovetail::mx
