#pragma once

#include "dovetail/mx/cuda_kernels.h"

namespace dovetail::mx::cuda {

/// `CudaKernels::native_product`: null without the cuBLASLt of CUDA 12.8 or later, the first with scales for blocks.
void (*native_gemm())(const NativeProblem& problem);

}  // namespace dovetail::mx::cuda
