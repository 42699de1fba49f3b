#include "dovetail/ops/cuda_kernels.h"

#include <filesystem>

#include "dovetail/base/module.h"

namespace dovetail::ops {

void* open_cuda_library(const char* entry) {
  const auto library = module_path(kCudaLibrary);
  if (!std::filesystem::exists(library)) return nullptr;
  return open_module(
      library, entry,
      "it is made for the CUDA of torch 2.11; remove it to do without our kernels on the GPU");
}

const CudaKernels* cuda_kernels() {
  static const auto* const kernels = cuda_kernel_table<CudaKernels>(kCudaEntry);
  return kernels;
}

}  // namespace dovetail::ops
