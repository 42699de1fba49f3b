#pragma once

#include "dovetail/mx/cuda_kernels.h"

namespace dovetail::mx::cuda {

/// `CudaKernels::native_product`: null where CUDA is older than 12.8, whose cuBLASLt has no scales for blocks.
void (*native_gemm())(const NativeProblem& problem);

}  // namespace dovetail::mx::cuda
