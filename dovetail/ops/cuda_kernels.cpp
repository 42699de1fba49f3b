#include "dovetail/ops/cuda_kernels.h"

#include <filesystem>

#include "dovetail/base/module.h"

namespace dovetail {

const CudaKernels* cuda_kernels() {
  static const CudaKernels* const kernels = []() -> const CudaKernels* {
    const auto library = module_path(kCudaLibrary);
    if (!std::filesystem::exists(library)) return nullptr;
    void* entry = open_module(library, kCudaEntry,
                              "it is made for the CUDA of torch 2.11; remove it to do without our kernels on the GPU");
    return reinterpret_cast<const CudaKernels* (*)()>(entry)();
  }();
  return kernels;
}

}  // namespace dovetail
