#include <torch/library.h>

#include "dovetail/ops/functions.h"
#include "dovetail/ops/gemm.h"

/// torch.ops.dovetail.*: one registration for all devices, since each function chooses its path by the tensor's device.
namespace dovetail {

namespace {

at::Tensor library_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return linear(x, weight, bias.value_or(at::Tensor()));
}

at::Tensor library_layer_norm(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                              double eps) {
  return layer_norm(x, weight, bias.value_or(at::Tensor()), eps);
}

at::Tensor library_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t rotary_dim,
                             double theta) {
  return attention(q, k, v, {.rotary_dim = rotary_dim, .theta = theta});
}

at::Tensor library_gemm(const at::Tensor& a, const at::Tensor& b, bool transpose_a, bool transpose_b) {
  return gemm(a, b, {.transpose_a = transpose_a, .transpose_b = transpose_b});
}

}  // namespace

}  // namespace dovetail

TORCH_LIBRARY(dovetail, m) {
  m.def("gemm(Tensor a, Tensor b, bool transpose_a=False, bool transpose_b=False) -> Tensor", dovetail::library_gemm);
  m.def("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", dovetail::library_linear);
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", dovetail::rms_norm);
  m.def("layer_norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor", dovetail::library_layer_norm);
  m.def("attention(Tensor q, Tensor k, Tensor v, int rotary_dim=0, float theta=10000.0) -> Tensor",
        dovetail::library_attention);
  m.def("swiglu(Tensor x) -> Tensor", dovetail::swiglu);
  m.def("gelu(Tensor x) -> Tensor", dovetail::gelu);
  m.def("squared_relu(Tensor x) -> Tensor", dovetail::squared_relu);
  m.def("linear_cross_entropy(Tensor x, Tensor weight, Tensor targets) -> Tensor", dovetail::linear_cross_entropy);
  m.def("embedding(Tensor weight, Tensor ids) -> Tensor", dovetail::embedding);
}
