#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/activation_simd.h"
#include "dovetail/ops/composed.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/meta.h"
#include "dovetail/ops/row_operation.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

const char* name(Activation activation) {
  switch (activation) {
    case Activation::kSwiGlu:
      return "swiglu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kSquaredRelu:
      return "squared_relu";
  }
  return "";
}

void check_input(Activation activation, const at::Tensor& x) {
  user_check(at::isFloatingType(x.scalar_type()), "{}: x must be floating, but is {}",
             name(activation), describe(x));
  user_check(activation != Activation::kSwiGlu || (x.dim() >= 1 && x.size(-1) % 2 == 0),
             "swiglu: the last size of x, gate and up, must be even; x is {}", describe(x));
}

std::vector<int64_t> output_sizes(Activation activation, const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  if (activation == Activation::kSwiGlu) sizes.back() /= 2;
  return sizes;
}

/// Returns the problem of an activation; x must be contiguous.
ActivationProblem problem(Activation activation, const at::Tensor& x) {
  const int64_t width = activation == Activation::kSwiGlu ? x.size(-1) / 2 : x.numel();
  const int64_t rows = activation == Activation::kSwiGlu ? x.numel() / x.size(-1) : 1;
  return {.activation = activation,
          .storage = storage_of(x),
          .rows = rows,
          .width = width,
          .x = x.const_data_ptr()};
}

/// Returns y; x must be contiguous.
at::Tensor output(Activation activation, const at::Tensor& x) {
  const TraceSpan span("dovetail::activation");
  at::Tensor y = at::empty(output_sizes(activation, x), x.options());
  const auto kernel = x.is_cuda() ? cuda_kernels()->activation_forward : &activation_forward;
  kernel(problem(activation, x), y.mutable_data_ptr());
  return y;
}

/// Returns dx; x and dy must be contiguous.
at::Tensor gradient(Activation activation, const at::Tensor& x, const at::Tensor& dy) {
  const TraceSpan span("dovetail::activation");
  at::Tensor dx = at::empty(x.sizes(), x.options());
  const auto kernel = x.is_cuda() ? cuda_kernels()->activation_backward : &activation_backward;
  kernel(problem(activation, x), dy.const_data_ptr(), dx.mutable_data_ptr());
  return dx;
}

class ActivationFunction : public torch::autograd::Function<ActivationFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_in,
                            int64_t number) {
    const at::Tensor x = x_in.contiguous();
    context->save_for_backward({x});
    context->saved_data["activation"] = number;
    return operation("dovetail::activation", {.reads = {x}}, [number](const Operands& inputs) {
      return std::vector{output(static_cast<Activation>(number), inputs.reads[0])};
    })[0];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    const at::Tensor dx =
        operation("dovetail::activation_gradient",
                  {.reads = {context->get_saved_variables()[0], gradients[0].contiguous()}},
                  [activation](const Operands& inputs) {
                    return std::vector{gradient(activation, inputs.reads[0], inputs.reads[1])};
                  })[0];
    return {dx, at::Tensor()};
  }
};

bool by_activation_kernel(const at::Tensor& x) {
  return use_kernel(Kernel::kActivation, x) && x.numel() > 0;
}

at::Tensor by_composition(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kSwiGlu:
      return composed::swiglu(x);
    case Activation::kGelu:
      return composed::gelu(x);
    case Activation::kSquaredRelu:
      return composed::squared_relu(x);
  }
  return {};
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  check_input(activation, x);
  if (x.is_meta()) return empty_on_meta({x}, output_sizes(activation, x), x.scalar_type());
  if (!by_activation_kernel(x)) return by_composition(activation, x);
  return ActivationFunction::apply(x, static_cast<int64_t>(activation));
}

class ActivationOperation : public RowOperation {
 public:
  explicit ActivationOperation(Activation activation) : activation_(activation) {}

  at::Tensor apply(const at::Tensor& x) const override { return activate(activation_, x); }
  std::shared_ptr<const RowOperation> with(const Parameters&) const override {
    return std::make_shared<ActivationOperation>(activation_);
  }
  bool has_rows(const at::Tensor& x) const override { return by_activation_kernel(x); }

  MadeRows rows(const at::Tensor& x, Statistics&) const override {
    check_input(activation_, x);
    const int64_t width = x.size(-1), out = output_sizes(activation_, x).back();
    const std::vector<int64_t> sizes = {x.numel() / width, out};
    if (x.is_cuda())
      return {.sizes = sizes,
              .dtype = x.scalar_type(),
              .make = {},
              .on_gpu = MadeRows::Activated{activation_, x}};
    const ActivationProblem all = {
        .activation = activation_, .storage = storage_of(x), .width = out};
    return {.sizes = sizes,
            .dtype = x.scalar_type(),
            .make =
                [all, x, width](int64_t row, int64_t rows, void* to) {
                  ActivationProblem part = all;
                  part.rows = rows;
                  part.x =
                      static_cast<const char*>(x.const_data_ptr()) + row * width * x.element_size();
                  activation_forward(part, to);
                },
            .on_gpu = {}};
  }

  Gradients gradients(const at::Tensor& x, const Statistics&, const at::Tensor& dy) const override {
    return {.x = gradient(activation_, x, dy.contiguous()), .parameters = {}};
  }

 private:
  Activation activation_;
};

}  // namespace

at::Tensor MadeRows::Activated::whole() const {
  const at::Tensor y = output(activation, x);
  return y.view({-1, y.size(-1)});
}

at::Tensor swiglu(const at::Tensor& x) { return activate(Activation::kSwiGlu, x); }
at::Tensor gelu(const at::Tensor& x) { return activate(Activation::kGelu, x); }
at::Tensor squared_relu(const at::Tensor& x) { return activate(Activation::kSquaredRelu, x); }

std::shared_ptr<const RowOperation> swiglu_operation() {
  return std::make_shared<ActivationOperation>(Activation::kSwiGlu);
}
std::shared_ptr<const RowOperation> gelu_operation() {
  return std::make_shared<ActivationOperation>(Activation::kGelu);
}
std::shared_ptr<const RowOperation> squared_relu_operation() {
  return std::make_shared<ActivationOperation>(Activation::kSquaredRelu);
}

}  // namespace dovetail::ops
