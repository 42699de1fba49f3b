#pragma once

#include "dovetail/mx/cuda_kernels.h"

namespace dovetail::mx::cuda {

/// Implements `CudaKernels::native_product`.
void native_gemm(const NativeProblem& problem);

}  // namespace dovetail::mx::cuda
