#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "dovetail/ops/convolution.h"
#include "tests/plan/momentum_step.h"

namespace dovetail::plan {

/// Algorithms of a layer's convolution, named as in plan/record/algorithms.h.
struct LayerAlgorithms {
  std::string forward = "aten", backward = "aten";
};

/// Convolution that runs the given algorithms eagerly, with autograd.
class ConvolutionBy : public torch::autograd::Function<ConvolutionBy> {
 public:
  /// Autograd accepts no undefined tensor. Without a bias `given` is any tensor and is ignored.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& given, bool has_bias,
                            int64_t stride, int64_t padding, const std::string& by,
                            const std::string& back_by) {
    context->save_for_backward({x, weight});
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    context->saved_data["bias"] = has_bias;
    context->saved_data["data"] = x.requires_grad();
    context->saved_data["back_by"] = back_by;
    const at::Tensor bias = has_bias ? given : at::Tensor();
    if (by == "aten")
      return at::convolution(x, weight, bias, {stride, stride}, {padding, padding}, {1, 1}, false,
                             {0, 0}, 1);
    return ops::convolution(x, weight, bias, options(stride, padding, by));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = gradients[0];
    auto& data = context->saved_data;
    const int64_t stride = data["stride"].toInt(), padding = data["padding"].toInt();
    const bool bias = data["bias"].toBool(), to_data = data["data"].toBool();
    const std::string by = data["back_by"].toStringRef();
    const auto aten = [&](std::array<bool, 3> mask) {
      return at::convolution_backward(dy, x, weight, {{weight.size(0)}}, {stride, stride},
                                      {padding, padding}, {1, 1}, false, {0, 0}, 1, mask);
    };
    torch::autograd::variable_list out(8);
    if (by == "aten") {
      std::tie(out[0], out[1], out[2]) = aten({to_data, true, bias});
      return out;
    }
    const size_t comma = by.find(", ");
    const std::string data_by = by.substr(0, comma),
                      weight_by = to_data ? by.substr(comma + 2) : by;
    if (to_data)
      out[0] = data_by == "aten" ? std::get<0>(aten({true, false, false}))
                                 : ops::convolution_backward_data(
                                       dy, weight, x.sizes(), options(stride, padding, data_by));
    if (weight_by == "aten") {
      std::tie(std::ignore, out[1], out[2]) = aten({false, true, bias});
    } else {
      auto made = ops::convolution_backward_weight(dy, x, weight.sizes(),
                                                   options(stride, padding, weight_by));
      out[1] = made.weight;
      if (bias) out[2] = made.bias;
    }
    return out;
  }

 private:
  static ops::ConvolutionOptions options(int64_t stride, int64_t padding, const std::string& by) {
    return {.stride = {stride, stride},
            .padding = {padding, padding},
            .algorithm = ops::convolution_algorithm(by)};
  }
};

/// Training step of a small convolutional network with momentum. Its convolutions run in ATen or,
/// eagerly, by other algorithms.
class ConvStep : public MomentumStep {
 public:
  static constexpr int kLayers = 4;
  using Algorithms = std::array<LayerAlgorithms, kLayers>;

  ConvStep() : MomentumStep(0.02) {
    at::manual_seed(1);
    const auto parameter = [&](const std::string& name, at::IntArrayRef sizes, double scale) {
      add_parameter(name, (at::randn(sizes) * scale).requires_grad_());
    };
    for (int i = 0; i < kLayers; ++i) {
      const auto& [in, out, kernel, stride, padding, bias] = kShapes[i];
      const std::string name = "conv" + std::to_string(i + 1);
      parameter(name + ".weight", {out, in, kernel, kernel}, 0.2);
      if (bias) parameter(name + ".bias", {out}, 0.1);
    }
    parameter("head.weight", {10, 8 * 6 * 6}, 0.1);
    images_ = at::randn({8, 3, 24, 24});
    targets_ = at::randint(0, 10, {8});
  }

  /// Runs a step. Without `by` it runs as captured.
  std::vector<at::Tensor> operator()(const Algorithms* by = nullptr) {
    forget_gradients();
    at::Tensor x = images_;
    auto next = parameters_.begin();
    for (int i = 0; i < kLayers; ++i) {
      const auto& [in, out, kernel, stride, padding, bias] = kShapes[i];
      const at::Tensor weight = (next++)->second, b = bias ? (next++)->second : at::Tensor();
      x = by == nullptr ? at::conv2d(x, weight, b, stride, padding)
                        : ConvolutionBy::apply(x, weight, bias ? b : weight, bias, stride, padding,
                                               (*by)[i].forward, (*by)[i].backward);
      x = i % 2 == 0 ? x.relu_() : x.relu();
      if (i == 1) x = at::max_pool2d(x, 2);
    }
    const at::Tensor loss =
        at::cross_entropy_loss(at::linear(x.flatten(1), next->second), targets_);
    return train(loss);
  }

 private:
  struct Shape {
    int64_t in, out, kernel, stride, padding;
    bool bias;
  };
  static constexpr std::array<Shape, kLayers> kShapes = {{{3, 16, 3, 1, 1, true},
                                                          {16, 24, 3, 1, 1, false},
                                                          {24, 16, 3, 2, 1, true},
                                                          {16, 8, 1, 1, 0, true}}};
};

}  // namespace dovetail::plan
