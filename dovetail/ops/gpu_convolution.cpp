#include "dovetail/ops/gpu_convolution.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {
namespace {

const CudnnKernels& cudnn_kernels() {
  static const auto* const found = cuda_kernel_table<CudnnKernels>(kCudnnEntry);
  user_check(found != nullptr,
             "gpu_convolution: this build has no kernels for the GPU; build where nvcc is found");
  return *found;
}

std::array<int64_t, 4> four(at::IntArrayRef sizes, const char* what) {
  user_check(sizes.size() == 4, "gpu_convolution: {} has {} dimensions, but must have 4", what,
             sizes.size());
  std::array<int64_t, 4> out{};
  std::ranges::copy(sizes, out.begin());
  return out;
}

void check_operand(const at::Tensor& tensor, const char* what) {
  user_check(tensor.is_cuda() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous(),
             "gpu_convolution: {} must be contiguous float32 on a GPU, but is {}", what,
             describe(tensor));
}

void check_gradient(const at::Tensor& dy, const GpuConvolution& convolution) {
  check_operand(dy, "dy");
  user_check(dy.sizes() == at::IntArrayRef(convolution.y),
             "gpu_convolution: dy is {}, but y has other sizes", describe(dy));
}

void convolve(const GpuConvolution& convolution, const GpuConvolutionOptions& options,
              const at::Tensor& a, const at::Tensor& b, const at::Tensor& to) {
  user_check(options.workspace_bytes >= 0, "gpu_convolution: workspace_bytes is {}",
             options.workspace_bytes);
  const at::Tensor workspace = at::empty({options.workspace_bytes}, to.options().dtype(at::kByte));
  cudnn_kernels().convolve(convolution, {options.algorithm, options.workspace_bytes},
                           a.const_data_ptr<float>(), b.const_data_ptr<float>(),
                           to.mutable_data_ptr<float>(), workspace.mutable_data_ptr());
}

}  // namespace

GpuConvolution gpu_convolution_of(ConvolutionPass pass, at::IntArrayRef x_sizes,
                                  at::IntArrayRef weight_sizes,
                                  const std::array<int64_t, 2>& stride,
                                  const std::array<int64_t, 2>& padding) {
  GpuConvolution out{.pass = pass,
                     .x = four(x_sizes, "x"),
                     .weight = four(weight_sizes, "weight"),
                     .stride = stride,
                     .padding = padding,
                     .tf32 = at::globalContext().allowTF32CuDNN()};
  user_check(out.x[1] == out.weight[1], "gpu_convolution: x has {} channels, but weight has {}",
             out.x[1], out.weight[1]);
  out.y = {out.x[0], out.weight[0], 0, 0};
  for (size_t d = 0; d < 2; ++d) {
    user_check(stride[d] > 0 && padding[d] >= 0,
               "gpu_convolution: stride {} must be positive, and padding {} not negative",
               stride[d], padding[d]);
    const int64_t room = out.x[d + 2] + 2 * padding[d] - out.weight[d + 2];
    user_check(room >= 0, "gpu_convolution: a filter of {} does not fit into {} padded by {}",
               out.weight[d + 2], out.x[d + 2], padding[d]);
    out.y[d + 2] = room / stride[d] + 1;
  }
  return out;
}

std::vector<GpuConvolutionAlgorithm> gpu_convolution_algorithms(const GpuConvolution& convolution) {
  return cudnn_kernels().algorithms(convolution);
}

at::Tensor gpu_convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const GpuConvolutionOptions& options) {
  const TraceSpan span("dovetail::gpu_convolution");
  check_operand(x, "x");
  check_operand(weight, "weight");
  const GpuConvolution made = gpu_convolution_of(ConvolutionPass::kForward, x.sizes(),
                                                 weight.sizes(), options.stride, options.padding);
  if (bias.defined()) {
    check_operand(bias, "bias");
    user_check(bias.dim() == 1 && bias.size(0) == weight.size(0),
               "gpu_convolution: bias is {}, but there are {} filters", describe(bias),
               weight.size(0));
  }
  at::Tensor y = at::empty(made.y, x.options());
  convolve(made, options, x, weight, y);
  if (bias.defined())
    cudnn_kernels().add_bias(made.y, bias.const_data_ptr<float>(), y.mutable_data_ptr<float>());
  return y;
}

at::Tensor gpu_convolution_backward_data(const at::Tensor& dy, const at::Tensor& weight,
                                         at::IntArrayRef x_sizes,
                                         const GpuConvolutionOptions& options) {
  const TraceSpan span("dovetail::gpu_convolution_backward_data");
  check_operand(weight, "weight");
  const GpuConvolution made = gpu_convolution_of(ConvolutionPass::kBackwardData, x_sizes,
                                                 weight.sizes(), options.stride, options.padding);
  check_gradient(dy, made);
  at::Tensor dx = at::empty(x_sizes, dy.options());
  convolve(made, options, dy, weight, dx);
  return dx;
}

ConvolutionGradients gpu_convolution_backward_weight(const at::Tensor& dy, const at::Tensor& x,
                                                     at::IntArrayRef weight_sizes, bool bias,
                                                     const GpuConvolutionOptions& options) {
  const TraceSpan span("dovetail::gpu_convolution_backward_weight");
  check_operand(x, "x");
  const GpuConvolution made = gpu_convolution_of(ConvolutionPass::kBackwardWeight, x.sizes(),
                                                 weight_sizes, options.stride, options.padding);
  check_gradient(dy, made);
  ConvolutionGradients out{.weight = at::empty(weight_sizes, dy.options())};
  if (bias) out.bias = at::empty({weight_sizes[0]}, dy.options());
  convolve(made, options, dy, x, out.weight);
  if (bias)
    cudnn_kernels().bias_gradient(made.y, dy.const_data_ptr<float>(),
                                  out.bias.mutable_data_ptr<float>());
  return out;
}

}  // namespace dovetail::ops
