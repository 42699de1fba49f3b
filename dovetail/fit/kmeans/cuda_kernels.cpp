#include "dovetail/fit/kmeans/cuda_kernels.h"

#include "dovetail/base/error.h"
#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::fit {
namespace {

const CudaKernels*& table() {
  static const auto* kernels = ops::cuda_kernel_table<CudaKernels>(kCudaEntry);
  return kernels;
}
const CudaKernels* given = nullptr;  // by use_cuda_kernels

}  // namespace

const CudaKernels& cuda_kernels() {
  if (given != nullptr) return *given;
  user_check(table() != nullptr,
             "kmeans: this build has no GPU kernels; build where nvcc is found, or use CPU "
             "executors");
  return *table();
}

void use_cuda_kernels(const CudaKernels& kernels) { given = &kernels; }

}  // namespace dovetail::fit
