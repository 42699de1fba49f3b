#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/activation_simd.h"
#include "dovetail/ops/composed.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/functions.h"

namespace dovetail {

namespace {

ActivationProblem problem(Activation activation, const at::Tensor& x) {
  const int64_t width = activation == Activation::kSwiGlu ? x.size(-1) / 2 : x.numel();
  const int64_t rows = activation == Activation::kSwiGlu ? x.numel() / x.size(-1) : 1;
  return {.activation = activation, .storage = storage_of(x), .rows = rows, .width = width, .x = x.const_data_ptr()};
}

class ActivationFunction : public torch::autograd::Function<ActivationFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_in, int64_t activation) {
    const TraceSpan span("dovetail::activation");
    const at::Tensor x = x_in.contiguous();
    auto sizes = x.sizes().vec();
    if (static_cast<Activation>(activation) == Activation::kSwiGlu) sizes.back() /= 2;
    const at::Tensor y = at::empty(sizes, x.options());
    const auto kernel = x.is_cuda() ? cuda_kernels()->activation_forward : &activation_forward;
    kernel(problem(static_cast<Activation>(activation), x), y.mutable_data_ptr());
    context->save_for_backward({x});
    context->saved_data["activation"] = activation;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const TraceSpan span("dovetail::activation");
    const at::Tensor x = context->get_saved_variables()[0], dy = gradients[0].contiguous();
    const at::Tensor dx = at::empty(x.sizes(), x.options());
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    const auto kernel = x.is_cuda() ? cuda_kernels()->activation_backward : &activation_backward;
    kernel(problem(activation, x), dy.const_data_ptr(), dx.mutable_data_ptr());
    return {dx, at::Tensor()};
  }
};

bool by_kernel(const at::Tensor& x) { return use_kernel(Kernel::kActivation, x) && x.numel() > 0; }

void check_floating(const char* name, const at::Tensor& x) {
  user_check(at::isFloatingType(x.scalar_type()), "{}: x must be floating, but is {}", name, describe(x));
}

}  // namespace

at::Tensor swiglu(const at::Tensor& x) {
  check_floating("swiglu", x);
  user_check(x.dim() >= 1 && x.size(-1) % 2 == 0, "swiglu: the last size of x, gate and up, must be even; x is {}",
             describe(x));
  if (x.is_meta()) return at::empty_like(x).narrow(-1, 0, x.size(-1) / 2);
  if (!by_kernel(x)) return composed::swiglu(x);
  return ActivationFunction::apply(x, static_cast<int64_t>(Activation::kSwiGlu));
}

at::Tensor gelu(const at::Tensor& x) {
  check_floating("gelu", x);
  if (x.is_meta()) return at::empty_like(x);
  if (!by_kernel(x)) return composed::gelu(x);
  return ActivationFunction::apply(x, static_cast<int64_t>(Activation::kGelu));
}

at::Tensor squared_relu(const at::Tensor& x) {
  check_floating("squared_relu", x);
  if (x.is_meta()) return at::empty_like(x);
  if (!by_kernel(x)) return composed::squared_relu(x);
  return ActivationFunction::apply(x, static_cast<int64_t>(Activation::kSquaredRelu));
}

}  // namespace dovetail
