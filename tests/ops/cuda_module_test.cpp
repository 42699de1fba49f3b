// Opens the GPU's module without a driver: what it needs must be found, and each layer's table must
// be there.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "dovetail/base/module.h"
#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::ops::cuda_module_test {
namespace {

TEST(CudaModule, OpensInAProcessThatHasLoadedOpsAlone) {
  const auto library = module_path(kCudaLibrary);
  if (!std::filesystem::exists(library))
    GTEST_SKIP() << "this build has no kernels for the GPU: there was no nvcc";
  ASSERT_EQ(dlopen("libdovetail_mx.so", RTLD_NOW | RTLD_NOLOAD), nullptr)
      << "this process has loaded more than ops";
  void* module = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(module, nullptr) << dlerror();
  for (const char* entry :
       {"dovetail_cuda_kernels", "dovetail_mx_cuda_kernels", "dovetail_moe_cuda_kernels",
        "dovetail_embedding_cuda_kernels", "dovetail_plan_cuda_device", "dovetail_cudnn_kernels"})
    EXPECT_NE(dlsym(module, entry), nullptr) << entry;
}

}  // namespace
}  // namespace dovetail::ops::cuda_module_test
