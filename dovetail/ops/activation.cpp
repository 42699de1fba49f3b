#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/activation_simd.h"
#include "dovetail/ops/composed.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/row_operation.h"

namespace dovetail {

namespace {

int64_t output_width(Activation activation, int64_t width) {
  return activation == Activation::kSwiGlu ? width / 2 : width;
}

ActivationProblem problem(Activation activation, const at::Tensor& x) {
  const int64_t width = activation == Activation::kSwiGlu ? x.size(-1) / 2 : x.numel();
  const int64_t rows = activation == Activation::kSwiGlu ? x.numel() / x.size(-1) : 1;
  return {.activation = activation, .storage = storage_of(x), .rows = rows, .width = width, .x = x.const_data_ptr()};
}

/// x and dy contiguous.
at::Tensor gradient(Activation activation, const at::Tensor& x, const at::Tensor& dy) {
  at::Tensor dx = at::empty(x.sizes(), x.options());
  const auto kernel = x.is_cuda() ? cuda_kernels()->activation_backward : &activation_backward;
  kernel(problem(activation, x), dy.const_data_ptr(), dx.mutable_data_ptr());
  return dx;
}

class ActivationFunction : public torch::autograd::Function<ActivationFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_in, int64_t activation) {
    const TraceSpan span("dovetail::activation");
    const at::Tensor x = x_in.contiguous();
    auto sizes = x.sizes().vec();
    sizes.back() = output_width(static_cast<Activation>(activation), sizes.back());
    at::Tensor y = at::empty(sizes, x.options());
    const auto kernel = x.is_cuda() ? cuda_kernels()->activation_forward : &activation_forward;
    kernel(problem(static_cast<Activation>(activation), x), y.mutable_data_ptr());
    context->save_for_backward({x});
    context->saved_data["activation"] = activation;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const TraceSpan span("dovetail::activation");
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    return {gradient(activation, context->get_saved_variables()[0], gradients[0].contiguous()), at::Tensor()};
  }
};

bool by_kernel(const at::Tensor& x) { return use_kernel(Kernel::kActivation, x) && x.numel() > 0; }

using Function = at::Tensor (*)(const at::Tensor&);

class ActivationOperation : public RowOperation {
 public:
  ActivationOperation(Activation activation, Function function) : activation_(activation), function_(function) {}

  at::Tensor apply(const at::Tensor& x) const override { return function_(x); }
  bool has_rows(const at::Tensor& x) const override { return x.is_cpu() && by_kernel(x); }

  MadeRows rows(const at::Tensor& x, Statistics&) const override {
    const int64_t width = x.size(-1), out = output_width(activation_, width);
    const ActivationProblem all = {.activation = activation_, .storage = storage_of(x), .width = out};
    return {.sizes = {x.numel() / width, out},
            .dtype = x.scalar_type(),
            .make = [all, x, width](int64_t row, int64_t rows, void* to) {
              ActivationProblem part = all;
              part.rows = rows;
              part.x = static_cast<const char*>(x.const_data_ptr()) + row * width * x.element_size();
              activation_forward(part, to);
            }};
  }

  Gradients gradients(const at::Tensor& x, const Statistics&, const at::Tensor& dy) const override {
    return {.x = gradient(activation_, x, dy.contiguous())};
  }

 private:
  Activation activation_;
  Function function_;
};

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

std::shared_ptr<const RowOperation> swiglu_operation() {
  return std::make_shared<ActivationOperation>(Activation::kSwiGlu, swiglu);
}
std::shared_ptr<const RowOperation> gelu_operation() {
  return std::make_shared<ActivationOperation>(Activation::kGelu, gelu);
}
std::shared_ptr<const RowOperation> squared_relu_operation() {
  return std::make_shared<ActivationOperation>(Activation::kSquaredRelu, squared_relu);
}

}  // namespace dovetail
