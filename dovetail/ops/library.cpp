#include <torch/library.h>

#include "dovetail/base/library.h"
#include "dovetail/base/traced.h"
#include "dovetail/ops/convolution.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/ops/gpu_convolution.h"

/// Registers torch.ops.dovetail.*, once for all devices: each function chooses its path by the
/// tensor's device.
namespace dovetail::ops {

namespace {

/// A tracer sees ATen's linear.
at::Tensor library_linear(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias) {
  if (is_traced(x) || is_traced(weight)) return at::linear(x, weight, bias);
  constexpr std::string_view kName = "linear";
  return linear(readable(kName, x), readable(kName, weight),
                readable(kName, bias.value_or(at::Tensor())));
}

at::Tensor library_layer_norm(const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, double eps) {
  return layer_norm(x, weight, bias.value_or(at::Tensor()), eps);
}

at::Tensor library_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             int64_t rotary_dim, double theta) {
  return attention(q, k, v, {.rotary_dim = rotary_dim, .theta = theta});
}

at::Tensor library_gemm(const at::Tensor& a, const at::Tensor& b, bool transpose_a,
                        bool transpose_b) {
  return gemm(a, b, {.transpose_a = transpose_a, .transpose_b = transpose_b});
}

ConvolutionOptions convolution_options(at::IntArrayRef stride, at::IntArrayRef padding,
                                       std::string_view algorithm) {
  return {.stride = {stride[0], stride[1]},
          .padding = {padding[0], padding[1]},
          .algorithm = convolution_algorithm(algorithm)};
}

at::Tensor library_convolution(const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                               at::IntArrayRef padding, std::string_view algorithm) {
  return convolution(x, weight, bias.value_or(at::Tensor()),
                     convolution_options(stride, padding, algorithm));
}

at::Tensor library_convolution_backward_data(const at::Tensor& dy, const at::Tensor& weight,
                                             at::IntArrayRef x_sizes, at::IntArrayRef stride,
                                             at::IntArrayRef padding, std::string_view algorithm) {
  return convolution_backward_data(dy, weight, x_sizes,
                                   convolution_options(stride, padding, algorithm));
}

GpuConvolutionOptions gpu_convolution_options(at::IntArrayRef stride, at::IntArrayRef padding,
                                              std::string_view algorithm, int64_t workspace_bytes) {
  return {.stride = {stride[0], stride[1]},
          .padding = {padding[0], padding[1]},
          .algorithm = std::string(algorithm),
          .workspace_bytes = workspace_bytes};
}

at::Tensor library_gpu_convolution(const at::Tensor& x, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                   at::IntArrayRef padding, std::string_view algorithm,
                                   int64_t workspace_bytes) {
  return gpu_convolution(x, weight, bias.value_or(at::Tensor()),
                         gpu_convolution_options(stride, padding, algorithm, workspace_bytes));
}

at::Tensor library_gpu_convolution_backward_data(const at::Tensor& dy, const at::Tensor& weight,
                                                 at::IntArrayRef x_sizes, at::IntArrayRef stride,
                                                 at::IntArrayRef padding,
                                                 std::string_view algorithm,
                                                 int64_t workspace_bytes) {
  return gpu_convolution_backward_data(
      dy, weight, x_sizes, gpu_convolution_options(stride, padding, algorithm, workspace_bytes));
}

std::tuple<at::Tensor, at::Tensor> library_gpu_convolution_backward_weight(
    const at::Tensor& dy, const at::Tensor& x, at::IntArrayRef weight_sizes, at::IntArrayRef stride,
    at::IntArrayRef padding, std::string_view algorithm, int64_t workspace_bytes, bool bias) {
  const ConvolutionGradients out = gpu_convolution_backward_weight(
      dy, x, weight_sizes, bias,
      gpu_convolution_options(stride, padding, algorithm, workspace_bytes));
  return {out.weight, out.bias};
}

std::tuple<at::Tensor, at::Tensor> library_convolution_backward_weight(
    const at::Tensor& dy, const at::Tensor& x, at::IntArrayRef weight_sizes, at::IntArrayRef stride,
    at::IntArrayRef padding, std::string_view algorithm, bool bias) {
  const ConvolutionGradients out = convolution_backward_weight(
      dy, x, weight_sizes, convolution_options(stride, padding, algorithm));
  return {out.weight, bias ? out.bias : at::Tensor()};
}

}  // namespace

}  // namespace dovetail::ops

TORCH_LIBRARY(dovetail, m) {
  dovetail::define<
      "gemm(Tensor a, Tensor b, bool transpose_a=False, bool transpose_b=False) -> Tensor",
      dovetail::ops::library_gemm>(m);
  m.def("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
        &dovetail::ops::library_linear);
  dovetail::define<"rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
                   dovetail::ops::rms_norm>(m);
  dovetail::define<"layer_norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor",
                   dovetail::ops::library_layer_norm>(m);
  dovetail::define<
      "attention(Tensor q, Tensor k, Tensor v, int rotary_dim=0, float theta=10000.0) -> Tensor",
      dovetail::ops::library_attention>(m);
  dovetail::define<"swiglu(Tensor x) -> Tensor", dovetail::ops::swiglu>(m);
  dovetail::define<"gelu(Tensor x) -> Tensor", dovetail::ops::gelu>(m);
  dovetail::define<"squared_relu(Tensor x) -> Tensor", dovetail::ops::squared_relu>(m);
  dovetail::define<"linear_cross_entropy(Tensor x, Tensor weight, Tensor targets) -> Tensor",
                   dovetail::ops::linear_cross_entropy>(m);
  dovetail::define<"embedding(Tensor weight, Tensor ids) -> Tensor", dovetail::ops::embedding>(m);
  m.def(
      "convolution(Tensor x, Tensor weight, Tensor? bias, int[2] stride, int[2] padding, str "
      "algorithm) -> Tensor");
  m.def(
      "convolution_backward_data(Tensor dy, Tensor weight, int[] x_sizes, int[2] stride, int[2] "
      "padding, str algorithm) -> Tensor");
  m.def(
      "convolution_backward_weight(Tensor dy, Tensor x, int[] weight_sizes, int[2] stride, int[2] "
      "padding, str algorithm, bool bias) -> (Tensor, Tensor)");
  const std::string how = "int[2] stride, int[2] padding, str algorithm, int workspace_bytes";
  m.def(("gpu_convolution(Tensor x, Tensor weight, Tensor? bias, " + how + ") -> Tensor").c_str());
  m.def(("gpu_convolution_backward_data(Tensor dy, Tensor weight, int[] x_sizes, " + how +
         ") -> Tensor")
            .c_str());
  m.def(("gpu_convolution_backward_weight(Tensor dy, Tensor x, int[] weight_sizes, " + how +
         ", bool bias) -> (Tensor, Tensor)")
            .c_str());
}

// Registered below autograd, which does not know these functions. So each is one operation of a
// recorded step.
TORCH_LIBRARY_IMPL(dovetail, CompositeExplicitAutograd, m) {
  dovetail::implement<"convolution", dovetail::ops::library_convolution>(m);
  dovetail::implement<"convolution_backward_data",
                      dovetail::ops::library_convolution_backward_data>(m);
  dovetail::implement<"convolution_backward_weight",
                      dovetail::ops::library_convolution_backward_weight>(m);
  dovetail::implement<"gpu_convolution", dovetail::ops::library_gpu_convolution>(m);
  dovetail::implement<"gpu_convolution_backward_data",
                      dovetail::ops::library_gpu_convolution_backward_data>(m);
  dovetail::implement<"gpu_convolution_backward_weight",
                      dovetail::ops::library_gpu_convolution_backward_weight>(m);
}
