#include "dovetail/moe/cuda_kernels.h"

#include "dovetail/base/error.h"
#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::moe {

namespace {

const CudaKernels* given = nullptr;  // by use_cuda_kernels

}  // namespace

void use_cuda_kernels(const CudaKernels& kernels) { given = &kernels; }

const CudaKernels* cuda_kernels() {
  if (given != nullptr) return given;
  static const auto* const kernels = ops::cuda_kernel_table<CudaKernels>(kCudaEntry);
  return kernels;
}

const CudaKernels& cuda_kernels_for(const char* op) {
  const CudaKernels* kernels = cuda_kernels();
  user_check(kernels != nullptr,
             "{}: this build has no kernels for the GPU; build where nvcc is found, or give it "
             "tensors on the CPU",
             op);
  return *kernels;
}

}  // namespace dovetail::moe
