#pragma once

#include <gtest/gtest.h>

#include <string>

#include "dovetail/base/gpu.h"
#include "dovetail/ops/cuda_kernels.h"

/// Fixtures of tests that need a GPU. Without one, the tests are skipped and say why.
namespace dovetail::testing {

class NeedsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

/// Needs the kernels of this build, too.
class NeedsGpuKernels : public NeedsGpu {
 protected:
  void SetUp() override {
    NeedsGpu::SetUp();
    if (IsSkipped()) return;
    if (ops::cuda_kernels() == nullptr)
      GTEST_SKIP() << "this build has no kernels for the GPU: there was no nvcc";
  }
};

}  // namespace dovetail::testing
