// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "dovetail/ops/adamw.h"
#include "dovetail/ops/cuda_kernels.h"
#include "tests/ops/gpu_test.h"
#include "tests/ops/testing.h"

namespace dovetail::ops::cuda_optimizer_test {
namespace {

class CudaOptimizer : public dovetail::testing::NeedsGpuKernels {};

/// `offset` elements into a larger tensor, so that its first element may lie on any address.
at::Tensor placed(const at::Tensor& values, int64_t offset) {
  at::Tensor room = at::zeros({values.numel() + offset}, values.options().device(at::kCUDA));
  room.narrow(0, offset, values.numel()).copy_(values.flatten());
  return room.narrow(0, offset, values.numel());
}

std::vector<int64_t> sizes_of(int64_t few) {
  std::vector<int64_t> sizes = {1, 3, 4, 0, 1000, (1 << 20) + 3, 4096, 4097};
  sizes.resize(sizes.size() + static_cast<size_t>(few), 37);  // more than one launch takes
  return sizes;
}

struct Steps {
  std::vector<AdamWTensor> tensors, wide;  ///< on the GPU; the same in float64 on the CPU
};

Steps run_steps(at::ScalarType gradient_dtype, int64_t offset) {
  const std::vector<int64_t> sizes = sizes_of(800);
  Steps out;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const at::Tensor parameter = testing::normal({sizes[i]}, i);
    const double decay = i % 2 == 0 ? 0.1 : 0.0;
    AdamWTensor t = {.parameter = placed(parameter, offset), .weight_decay = decay};
    t.m = placed(at::zeros_like(parameter), offset);
    t.v = placed(at::zeros_like(parameter), offset);
    if (i % 3 != 0) t.compute_copy = placed(at::zeros({sizes[i]}, at::kBFloat16), offset);
    out.tensors.push_back(t);
    const at::Tensor exact = parameter.to(at::kDouble);
    out.wide.push_back({.parameter = exact,
                        .m = at::zeros_like(exact),
                        .v = at::zeros_like(exact),
                        .weight_decay = decay});
  }
  for (int64_t step = 1; step <= 3; ++step) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto seed = static_cast<uint64_t>(step) * 10000 + i;
      const at::Tensor gradient = testing::normal({sizes[i]}, seed).to(gradient_dtype);
      out.tensors[i].gradient = placed(gradient, offset);
      out.wide[i].gradient = gradient.to(at::kDouble);
    }
    const AdamWOptions options = {.lr = 1e-2, .grad_scale = 0.25, .step = step};
    adamw_step(out.tensors, options);
    adamw_step(out.wide, options);
  }
  return out;
}

TEST_F(CudaOptimizer, StepsAsInFloat64OnTheCpu) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t offset : {0, 1}) {
      const Steps steps = run_steps(dtype, offset);
      for (size_t i = 0; i < steps.tensors.size(); ++i) {
        const AdamWTensor &t = steps.tensors[i], &exact = steps.wide[i];
        if (t.parameter.numel() == 0) continue;
        const auto error = [](const at::Tensor& a, const at::Tensor& b) {
          return (a.cpu().to(at::kDouble) - b).abs().max().item<double>();
        };
        // An element moves by lr a step at most. Values up to 6 bound its own rounding.
        ASSERT_LE(error(t.parameter, exact.parameter), 3e-6) << i;
        ASSERT_LE(error(t.m, exact.m), 1e-6) << i;
        ASSERT_LE(error(t.v, exact.v), 1e-6) << i;
        ASSERT_TRUE(!t.compute_copy.defined() ||
                    t.compute_copy.equal(t.parameter.to(at::kBFloat16)))
            << i;
      }
    }
  }
}

TEST_F(CudaOptimizer, LeavesWhatLiesAroundAView) {
  AdamWTensor t;
  const at::Tensor room = at::full({70}, 5, at::TensorOptions(at::kFloat).device(at::kCUDA));
  t.parameter = room.narrow(0, 4, 61);
  t.gradient = at::ones({61}, room.options());
  t.m = at::zeros({61}, room.options());
  t.v = at::zeros({61}, room.options());
  adamw_step({t}, {.lr = 1});
  EXPECT_TRUE(room.narrow(0, 0, 4).eq(5).all().item<bool>());
  EXPECT_TRUE(room.narrow(0, 65, 5).eq(5).all().item<bool>());
  EXPECT_TRUE(t.parameter.ne(5).all().item<bool>());
}

TEST_F(CudaOptimizer, GivesTheSameBitsTwice) {
  const Steps a = run_steps(at::kBFloat16, 0), b = run_steps(at::kBFloat16, 0);
  for (size_t i = 0; i < a.tensors.size(); ++i)
    EXPECT_TRUE(a.tensors[i].parameter.equal(b.tensors[i].parameter)) << i;
}

TEST_F(CudaOptimizer, SumsSquaresOnTheGpu) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t offset : {0, 1}) {
      std::vector<at::Tensor> tensors;
      double expected = 0;
      for (const int64_t size : sizes_of(1200)) {
        const at::Tensor values = testing::normal({size}, static_cast<uint64_t>(size)).to(dtype);
        expected += values.to(at::kDouble).square().sum().item<double>();
        tensors.push_back(placed(values, offset));
      }
      const at::Tensor squares = squares_of_pieces(tensors);
      EXPECT_TRUE(squares.is_cuda());
      EXPECT_NEAR(sum_of_squares(tensors), expected, 1e-12 * expected);
      EXPECT_TRUE(squares.equal(squares_of_pieces(tensors)));
    }
  }
  const at::TensorOptions on_gpu = at::TensorOptions(at::kFloat).device(at::kCUDA);
  EXPECT_TRUE(std::isnan(sum_of_squares({at::full({3}, NAN, on_gpu)})));
  EXPECT_TRUE(std::isinf(sum_of_squares({at::full({3}, INFINITY, on_gpu)})));
  EXPECT_NEAR(sum_of_squares({at::full({4}, 1e30, on_gpu)}) / 4e60, 1, 1e-6);
}

}  // namespace
}  // namespace dovetail::ops::cuda_optimizer_test
