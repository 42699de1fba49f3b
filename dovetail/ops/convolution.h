#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace dovetail::ops {

/// CPU algorithms of a convolution, in addition to ATen's own (at::convolution: oneDNN's direct
/// kernels).
///   im2col    unfolds one image at a time into columns and multiplies them with the filters
///   winograd  F(4 x 4, 3 x 3) (Lavin and Gray 2015, arXiv 1509.09308): a quarter of the
///             multiplications, larger errors
enum class ConvolutionAlgorithm { kIm2col, kWinograd };
/// Returns "im2col" or "winograd".
std::string_view name(ConvolutionAlgorithm algorithm);
/// Returns the algorithm of this name. Throws UserError for an unknown name.
ConvolutionAlgorithm convolution_algorithm(std::string_view name);

struct ConvolutionOptions {
  /// Each is {height, width}. Padding adds zeros.
  std::array<int64_t, 2> stride = {1, 1}, padding = {0, 0};
  ConvolutionAlgorithm algorithm = ConvolutionAlgorithm::kIm2col;
};

/// Returns y (N, K, P, Q), the convolution of x (N, C, H, W) with weight (K, C, R, S) [+ bias (K)].
/// N is the batch size, C and K are channels, and filters are R x S. P = (H + 2 padding - R) /
/// stride + 1, rounded down, and Q likewise from W and S. All tensors are float32 on the CPU; x and
/// weight are made contiguous. One group, no dilation.
///
/// The result's bits depend on the instruction set (ops/simd_level.h), not on the number of
/// threads. The error bound of im2col is (C R S + 1) 2^-24 sum |x| |weight|. The bound of winograd
/// is in winograd.h. Autograd does not differentiate this function: use the gradients below. Throws
/// UserError for shapes that do not match, and if `why_not` returns a reason.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const ConvolutionOptions& options);

/// Returns the gradient of x, with shape `x_sizes`, given the gradient dy (N, K, P, Q) of y.
at::Tensor convolution_backward_data(const at::Tensor& dy, const at::Tensor& weight,
                                     at::IntArrayRef x_sizes, const ConvolutionOptions& options);

/// Gradients of the weight, with shape `weight_sizes`, and of the bias, (K). Images of the batch
/// are summed in their order.
struct ConvolutionGradients {
  at::Tensor weight, bias;
};
ConvolutionGradients convolution_backward_weight(const at::Tensor& dy, const at::Tensor& x,
                                                 at::IntArrayRef weight_sizes,
                                                 const ConvolutionOptions& options);

/// Pass of a convolution: y, the gradient of x, or the gradients of weight and bias.
enum class ConvolutionPass { kForward, kBackwardData, kBackwardWeight };

/// Returns the reason why `options.algorithm` cannot compute a pass, or nullopt if it can. Im2col
/// computes every pass. Limits of winograd:
/// - Filters are 3 x 3, and the stride is 1.
/// - It computes no gradients of weights.
/// - For gradients of x, the padding is at most 2.
std::optional<std::string> why_not(ConvolutionPass pass, at::IntArrayRef weight_sizes,
                                   const ConvolutionOptions& options);

/// Returns the size in bytes of the workspace of a pass, in addition to its arguments and results.
/// The pass allocates its workspace after its results and frees it at its end.
/// - im2col: the workspace holds the columns of one image. If the columns are the image itself (1 x
///   1 filters, stride 1, no padding), they take no memory. Gradients of weights also need K sums.
/// - winograd: see winograd.h.
///
/// The buffers in which each thread packs matrix products (ops/workspace.h) are not counted, since
/// threads keep them between calls.
int64_t convolution_workspace_bytes(ConvolutionPass pass, at::IntArrayRef x_sizes,
                                    at::IntArrayRef weight_sizes,
                                    const ConvolutionOptions& options);

}  // namespace dovetail::ops
