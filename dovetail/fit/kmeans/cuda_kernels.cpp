#include "dovetail/fit/kmeans/cuda_kernels.h"

#include "dovetail/base/error.h"
#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::fit {
namespace {

const CudaKernels* given = nullptr;  // by use_cuda_kernels

}  // namespace

const CudaKernels& cuda_kernels() {
  if (given != nullptr) return *given;
  static const auto* const kernels = ops::cuda_kernel_table<CudaKernels>(kCudaEntry);
  user_check(kernels != nullptr,
             "kmeans: this build has no GPU kernels; build where nvcc is found, or use CPU "
             "executors");
  return *kernels;
}

void use_cuda_kernels(const CudaKernels& kernels) { given = &kernels; }

}  // namespace dovetail::fit
