#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace dovetail {

/// How a convolution is computed on the CPU, beside ATen's own way (at::convolution: oneDNN's
/// direct kernels).
///   im2col    the columns of one image at a time, and a matrix product with the filters
///   winograd  F(4 x 4, 3 x 3) (Lavin and Gray 2015, arXiv 1509.09308): a quarter of the
///   multiplications, larger errors
enum class ConvolutionAlgorithm { kIm2col, kWinograd };
std::string_view name(ConvolutionAlgorithm algorithm);
/// UserError for a name that is neither.
ConvolutionAlgorithm convolution_algorithm(std::string_view name);

struct ConvolutionOptions {
  std::array<int64_t, 2> stride = {1, 1}, padding = {0, 0};  ///< height, width; padding by zeros
  ConvolutionAlgorithm algorithm = ConvolutionAlgorithm::kIm2col;
};

/// y (N, K, P, Q) = x (N, C, H, W) * weight (K, C, R, S) [+ bias (K)], where P = (H + 2 padding -
/// R) / stride + 1, rounded down, and Q likewise. All float32 on the CPU; x and weight are made
/// contiguous. One group, no dilation.
///
/// The bits depend on the instruction set (ops/simd_level.h), not on the number of threads. Error
/// bounds: of im2col (C R S + 1) 2^-24 sum |x| |weight|; of winograd in winograd.h. Gradients are
/// the functions below: autograd does not know of these. UserError on what does not fit, and where
/// `why_not` has a reason.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const ConvolutionOptions& options);

/// The gradient of x (of `x_sizes`), given dy (N, K, P, Q).
at::Tensor convolution_backward_data(const at::Tensor& dy, const at::Tensor& weight,
                                     at::IntArrayRef x_sizes, const ConvolutionOptions& options);

/// The gradients of the weight (of `weight_sizes`) and the bias. Sums run over images in their
/// order.
struct ConvolutionGradients {
  at::Tensor weight, bias;
};
ConvolutionGradients convolution_backward_weight(const at::Tensor& dy, const at::Tensor& x,
                                                 at::IntArrayRef weight_sizes,
                                                 const ConvolutionOptions& options);

enum class ConvolutionPass { kForward, kBackwardData, kBackwardWeight };

/// Why an algorithm cannot do a pass, or nothing. winograd is for filters of 3 x 3 with stride 1,
/// forward and backward to data, there with padding up to 2.
std::optional<std::string> why_not(ConvolutionPass pass, at::IntArrayRef weight_sizes,
                                   const ConvolutionOptions& options);

/// Bytes that a pass needs beside its arguments and results, which it allocates after these and
/// frees at its end: for im2col the columns of one image (none where they are the image itself)
/// and, of backward to weights, a row of sums; for winograd see winograd.h. The buffers that each
/// thread packs matrix products in (ops/workspace.h) are kept between calls and not counted.
int64_t convolution_workspace_bytes(ConvolutionPass pass, at::IntArrayRef x_sizes,
                                    at::IntArrayRef weight_sizes,
                                    const ConvolutionOptions& options);

}  // namespace dovetail
