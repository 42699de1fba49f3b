#include "dovetail/mx/feed_forward.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "dovetail/base/error.h"

namespace dovetail::mx {

std::shared_ptr<const ops::RowOperation> activation_operation(const std::string& name) {
  if (name == "swiglu") return ops::swiglu_operation();
  if (name == "gelu") return ops::gelu_operation();
  DOVETAIL_CHECK(name == "relu2", "no activation is called \"{}\"", name);
  return ops::squared_relu_operation();
}

at::Tensor activation_gradient(const ops::RowOperation& activation, const at::Tensor& h,
                               const at::Tensor& dy) {
  if (activation.has_rows(h)) return activation.gradients(h, {}, dy).x;
  const at::AutoGradMode enabled(true);
  const at::Tensor x = h.detach().requires_grad_();
  return torch::autograd::grad({activation.apply(x)}, {x}, {dy})[0];
}

int64_t up_width(const std::string& activation, int64_t width) {
  return activation == "swiglu" ? 2 * width : width;
}

FeedForward::FeedForward(const Options& options)
    : activation_(activation_operation(options.activation)) {
  up_ = register_module("up", make_linear({.in = options.in,
                                           .out = up_width(options.activation, options.width),
                                           .bias = options.bias,
                                           .name = options.name + ".up",
                                           .device = options.device}));
  down_ = register_module("down", make_linear({.in = options.width,
                                               .out = options.in,
                                               .bias = options.bias,
                                               .name = options.name + ".down",
                                               .device = options.device}));
}

at::Tensor FeedForward::forward(const at::Tensor& x, const QuantizedLinear::Prologue& prologue) {
  return down_->forward(up_->forward(x, prologue), activation_);
}

}  // namespace dovetail::mx
