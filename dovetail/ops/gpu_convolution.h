#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/ops/convolution.h"

/// Convolutions on a GPU by algorithms of cuDNN's legacy interface, which says what workspace each
/// takes. Shapes are as in ops/convolution.h: one group, no dilation, float32.
namespace dovetail::ops {

/// Sizes of a convolution: x (N, C, H, W), filters (K, C, R, S), y (N, K, P, Q).
struct GpuConvolution {
  ConvolutionPass pass = ConvolutionPass::kForward;
  std::array<int64_t, 4> x = {}, weight = {}, y = {};
  std::array<int64_t, 2> stride = {1, 1}, padding = {0, 0};
  /// Products in TF32 where an algorithm can: at::globalContext().allowTF32CuDNN().
  bool tf32 = false;
};
/// Returns the convolution of these tensors. Throws UserError if shapes, stride or padding do not
/// match.
GpuConvolution gpu_convolution_of(ConvolutionPass pass, at::IntArrayRef x_sizes,
                                  at::IntArrayRef weight_sizes,
                                  const std::array<int64_t, 2>& stride,
                                  const std::array<int64_t, 2>& padding);

/// Algorithm of a pass, by cuDNN's name in lower case, such as "implicit_precomp_gemm".
struct GpuConvolutionAlgorithm {
  std::string name;
  int64_t workspace_bytes = 0;
};
/// Returns the algorithms that can compute a pass with equal bits in each run, fastest first by
/// cuDNN's estimate. Runs none of them. Throws UserError if this build has no CUDA library.
std::vector<GpuConvolutionAlgorithm> gpu_convolution_algorithms(const GpuConvolution& convolution);

/// How to compute a pass. `workspace_bytes` is what gpu_convolution_algorithms says.
struct GpuConvolutionOptions {
  std::array<int64_t, 2> stride = {1, 1}, padding = {0, 0};
  std::string algorithm;
  int64_t workspace_bytes = 0;
};
/// Returns y = x * weight [+ bias (K)]. Allocates y, then the workspace, which it frees at the end.
/// Throws UserError for an unknown algorithm, for other shapes, and if cuDNN refuses.
at::Tensor gpu_convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const GpuConvolutionOptions& options);
/// Returns the gradient of x, given the gradient dy of y. Allocates like gpu_convolution.
at::Tensor gpu_convolution_backward_data(const at::Tensor& dy, const at::Tensor& weight,
                                         at::IntArrayRef x_sizes,
                                         const GpuConvolutionOptions& options);
/// Returns the gradients of the weight and, if `bias`, of the bias. Allocates both, then the
/// workspace, which it frees at the end.
ConvolutionGradients gpu_convolution_backward_weight(const at::Tensor& dy, const at::Tensor& x,
                                                     at::IntArrayRef weight_sizes, bool bias,
                                                     const GpuConvolutionOptions& options);

/// Table of cuDNN calls, which the CUDA library makes on torch's current stream.
struct CudnnKernels {
  std::vector<GpuConvolutionAlgorithm> (*algorithms)(const GpuConvolution& convolution);
  /// Computes a pass from `a` and `b`: x and weight, dy and weight, or dy and x.
  void (*convolve)(const GpuConvolution& convolution, const GpuConvolutionAlgorithm& algorithm,
                   const float* a, const float* b, float* to, void* workspace);
  /// Adds bias (K) to y, or sums dy into the gradient of the bias.
  void (*add_bias)(const std::array<int64_t, 4>& y_sizes, const float* bias, float* y);
  void (*bias_gradient)(const std::array<int64_t, 4>& y_sizes, const float* dy, float* to);
};
/// Name of the function in the CUDA library that returns the table.
inline constexpr const char* kCudnnEntry = "dovetail_cudnn_kernels";

}  // namespace dovetail::ops
