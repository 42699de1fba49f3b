#include "dovetail/embedding/pack/cuda_kernels.h"

#include "dovetail/base/error.h"
#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::embedding {

namespace {

const CudaKernels* table() {
  static const auto* const kernels = ops::cuda_kernel_table<CudaKernels>(kCudaEntry);
  return kernels;
}

}  // namespace

bool has_cuda_kernels() { return table() != nullptr; }

const CudaKernels& cuda_kernels() {
  user_check(has_cuda_kernels(),
             "embedding: this build has no GPU kernels for tables; build where nvcc is found, or "
             "keep tables on the CPU");
  return *table();
}

}  // namespace dovetail::embedding
