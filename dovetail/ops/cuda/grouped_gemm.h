#pragma once

#include <span>

#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::ops::cuda {

/// Implementation of `CudaKernels::grouped_products`.
void grouped_gemm(Storage storage, std::span<const GroupedProduct> products);

}  // namespace dovetail::ops::cuda
