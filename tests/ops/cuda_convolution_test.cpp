// ctest-labels: cuda
// cuDNN's algorithms by name, against float64 convolutions of ATen on the CPU.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/ops/gpu_convolution.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::ops::cuda_convolution_test {
namespace {

class CudaConvolution : public dovetail::testing::NeedsGpuKernels {};

struct Case {
  std::vector<int64_t> x, weight;
  int64_t stride, padding;
};

const std::vector<Case> kCases = {{{2, 3, 32, 32}, {16, 3, 3, 3}, 1, 1},
                                  {{3, 16, 17, 23}, {8, 16, 3, 3}, 1, 1},
                                  {{2, 16, 20, 20}, {24, 16, 5, 5}, 2, 2},
                                  {{4, 32, 14, 14}, {64, 32, 1, 1}, 1, 0}};

/// Largest error relative to the largest expected element.
double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.cpu().to(at::kDouble) - expected).abs().max() / expected.abs().max())
      .item<double>();
}

TEST_F(CudaConvolution, EachAlgorithmOfEachPassHasTheValuesOfFloat64AndEqualBitsAgain) {
  at::globalContext().setAllowTF32CuDNN(false);
  for (const Case& c : kCases) {
    at::manual_seed(3);
    const at::Tensor x = at::randn(c.x), weight = at::randn(c.weight),
                     bias = at::randn(c.weight[0]);
    const std::vector<int64_t> stride(2, c.stride), padding(2, c.padding);
    const at::Tensor y =
        at::convolution(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble), stride,
                        padding, {1, 1}, false, {0, 0}, 1);
    const at::Tensor dy = at::randn(y.sizes());
    const auto [dx, dweight, dbias] = at::convolution_backward(
        dy.to(at::kDouble), x.to(at::kDouble), weight.to(at::kDouble), {{c.weight[0]}}, stride,
        padding, {1, 1}, false, {0, 0}, 1, {true, true, true});
    const at::Tensor gx = x.cuda(), gw = weight.cuda(), gb = bias.cuda(), gdy = dy.cuda();
    GpuConvolution problem{.stride = {c.stride, c.stride}, .padding = {c.padding, c.padding}};
    std::ranges::copy(c.x, problem.x.begin());
    std::ranges::copy(c.weight, problem.weight.begin());
    std::ranges::copy(y.sizes(), problem.y.begin());
    for (const ConvolutionPass pass : {ConvolutionPass::kForward, ConvolutionPass::kBackwardData,
                                       ConvolutionPass::kBackwardWeight}) {
      problem.pass = pass;
      const auto algorithms = gpu_convolution_algorithms(problem);
      EXPECT_FALSE(algorithms.empty());
      for (const GpuConvolutionAlgorithm& algorithm : algorithms) {
        SCOPED_TRACE(algorithm.name + " of pass " + std::to_string(static_cast<int>(pass)));
        const GpuConvolutionOptions how{.stride = problem.stride,
                                        .padding = problem.padding,
                                        .algorithm = algorithm.name,
                                        .workspace_bytes = algorithm.workspace_bytes};
        const auto run = [&]() -> std::vector<at::Tensor> {
          if (pass == ConvolutionPass::kForward) return {gpu_convolution(gx, gw, gb, how)};
          if (pass == ConvolutionPass::kBackwardData)
            return {gpu_convolution_backward_data(gdy, gw, c.x, how)};
          const ConvolutionGradients made =
              gpu_convolution_backward_weight(gdy, gx, c.weight, /*bias=*/true, how);
          return {made.weight, made.bias};
        };
        const std::vector<at::Tensor> expected = pass == ConvolutionPass::kForward ? std::vector{y}
                                                 : pass == ConvolutionPass::kBackwardData
                                                     ? std::vector{dx}
                                                     : std::vector{dweight, dbias};
        const std::vector<at::Tensor> made = run(), again = run();
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_LT(error_of(made[i], expected[i]), 1e-4);  // Winograd and FFT round more
          EXPECT_TRUE(made[i].equal(again[i]));
        }
      }
    }
  }
}

TEST_F(CudaConvolution, RefusesWhatItCannotCompute) {
  const at::Tensor x = at::ones({1, 2, 8, 8}, at::kCUDA), w = at::ones({3, 2, 3, 3}, at::kCUDA);
  EXPECT_THROW(gpu_convolution(x, w, {}, {.algorithm = "quick"}), UserError);
  EXPECT_THROW(gpu_convolution(x, at::ones({3, 4, 3, 3}, at::kCUDA), {}, {.algorithm = "gemm"}),
               UserError);
  EXPECT_THROW(gpu_convolution(x.cpu(), w, {}, {.algorithm = "gemm"}), UserError);
}

}  // namespace
}  // namespace dovetail::ops::cuda_convolution_test
