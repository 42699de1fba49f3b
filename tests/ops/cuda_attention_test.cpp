// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dovetail/ops/composed.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/gpu_attention.h"
#include "tests/ops/gpu_test.h"
#include "tests/ops/testing.h"

namespace dovetail::ops::cuda_attention_test {
namespace {

class CudaAttention : public dovetail::testing::NeedsGpu {};

/// Both kernels compute attention as the CPU does in float64, for equal and for fewer heads of
/// keys.
TEST_F(CudaAttention, EachKernelIsTheReference) {
  for (const auto kernel : {GpuAttention::kFlash, GpuAttention::kCudnn}) {
    use_gpu_attention(kernel, at::kCUDA);
    for (const int64_t kv_heads : {4, 2}) {
      std::vector<at::Tensor> wide, device;
      for (const int64_t heads : {int64_t{4}, kv_heads, kv_heads}) {
        const at::Tensor x = testing::normal({2, 192, heads, 64}, 10 + heads).to(at::kBFloat16);
        wide.push_back(x.to(at::kDouble).requires_grad_());
        device.push_back(x.to(at::kCUDA).requires_grad_());
      }
      const AttentionOptions options{.rotary_dim = 32};
      const at::Tensor expected = composed::attention(wide[0], wide[1], wide[2], options),
                       actual = attention(device[0], device[1], device[2], options);
      const at::Tensor upstream = testing::normal(expected.sizes(), 99).to(at::kBFloat16);
      expected.backward(upstream.to(at::kDouble));
      actual.backward(upstream.to(at::kCUDA));
      const auto expect_near = [&](const at::Tensor& a, const at::Tensor& b) {
        const double error = (a.detach().cpu().to(at::kDouble) - b.detach()).norm().item<double>();
        EXPECT_LE(error, 1e-2 * b.norm().item<double>()) << static_cast<int>(kernel);
      };
      expect_near(actual, expected);
      for (size_t i = 0; i < wide.size(); ++i) expect_near(device[i].grad(), wide[i].grad());
    }
  }
}

TEST_F(CudaAttention, TimesAreFiniteWhereThereIsAKernel) {
  const GpuAttentionShape shape = {
      .batch = 2, .length = 256, .heads = 4, .kv_heads = 4, .head_dim = 64};
  const double flash = measure_gpu_attention(GpuAttention::kFlash, shape, at::kCUDA),
               cudnn = measure_gpu_attention(GpuAttention::kCudnn, shape, at::kCUDA);
  EXPECT_GT(flash, 0);
  EXPECT_LT(flash, 1e3);
  EXPECT_TRUE(std::isinf(cudnn) || cudnn < 1e3);
  GpuAttentionShape wide = shape;
  wide.head_dim = 520;  // beyond both kernels
  EXPECT_TRUE(std::isinf(measure_gpu_attention(GpuAttention::kFlash, wide, at::kCUDA)));
}

}  // namespace
}  // namespace dovetail::ops::cuda_attention_test
