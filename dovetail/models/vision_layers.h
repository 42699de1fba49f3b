#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/layer_scope.h"

/// Layers of the vision models. Images are (B, channels, height, width); parameters are float32 and
/// uninitialised.
namespace dovetail::models {

/// Products of a value and a weight in all forward passes of this thread on the meta device. ATen
/// lacks some operators there, so layers make the results of these themselves.
double& meta_products();

/// Layer that a parent module registers under a name. A call of the Child runs the layer's forward
/// in a LayerScope (base/layer_scope.h) of that name.
template <class Layer>
class Child {
 public:
  Child(torch::nn::Module& parent, std::string name, std::shared_ptr<Layer> layer)
      : name_(std::move(name)), layer_(parent.register_module(name_, std::move(layer))) {}

  template <class... Inputs>
  at::Tensor operator()(const Inputs&... inputs) const {
    const LayerScope scope(name_);
    return layer_->forward(inputs...);
  }

 private:
  std::string name_;
  std::shared_ptr<Layer> layer_;
};

/// Layers that run one after the other, named "0", "1" and so on, as in torch.nn.Sequential.
class Sequence : public torch::nn::Module {
 public:
  template <class Layer>
  void add(std::shared_ptr<Layer> layer) {
    steps_.emplace_back(Child<Layer>(*this, std::to_string(steps_.size()), std::move(layer)));
  }
  at::Tensor forward(at::Tensor x) const {
    for (const auto& step : steps_) x = step(x);
    return x;
  }

 private:
  std::vector<std::function<at::Tensor(const at::Tensor&)>> steps_;
};

/// Convolution with a square kernel of odd size, padded with kernel / 2 zeros on each side.
/// Parameters: weight (out, in, kernel, kernel), bias (out).
class Convolution : public torch::nn::Module {
 public:
  struct Options {
    int64_t in = 0, out = 0, kernel = 3, stride = 1;
    bool bias = false;
    c10::Device device = c10::kCPU;
  };
  explicit Convolution(const Options& options);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  int64_t stride_, padding_;
  at::Tensor weight_, bias_;
};

/// Transposed convolution with kernel 2 and stride 2, which doubles height and width. Parameters:
/// weight (in, out, 2, 2), bias (out).
class Upsampling : public torch::nn::Module {
 public:
  Upsampling(int64_t in, int64_t out, c10::Device device);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  at::Tensor weight_, bias_;
};

/// Batch norm: Ioffe and Szegedy 2015 (arXiv 1502.03167). Parameters: weight, bias. Buffers:
/// running_mean, running_var and num_batches_tracked. A forward in training mode updates the
/// buffers (momentum 0.1, unbiased variance).
class BatchNorm : public torch::nn::Module {
 public:
  BatchNorm(int64_t channels, c10::Device device);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_, bias_, mean_, variance_, batches_;
};

/// Fully connected layer. It calls ATen's operator, not this project's own linear operation:
/// recordings of a step (see VisionModel) then contain ATen's operators only. Parameters: weight
/// (out, in), bias (out).
class Dense : public torch::nn::Module {
 public:
  Dense(int64_t in, int64_t out, c10::Device device);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  at::Tensor weight_, bias_;
};

/// ReLU; with `in_place` it overwrites its input.
class Relu : public torch::nn::Module {
 public:
  explicit Relu(bool in_place) : in_place_(in_place) {}
  at::Tensor forward(const at::Tensor& x) const;

 private:
  bool in_place_;
};

/// Sets each value to zero with probability 1/2 and doubles the other values. Does so in training
/// mode only.
class Dropout : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) const;
};

/// Maximum over windows of kernel x kernel elements. With an odd kernel, the image is padded with
/// kernel / 2 elements on each side. With an even kernel, it is not padded.
class MaxPool : public torch::nn::Module {
 public:
  MaxPool(int64_t kernel, int64_t stride) : kernel_(kernel), stride_(stride) {}
  at::Tensor forward(const at::Tensor& x) const;

 private:
  int64_t kernel_, stride_;
};

/// Divides an image of any size into size x size parts and returns the average of each part.
class AdaptiveAveragePool : public torch::nn::Module {
 public:
  explicit AdaptiveAveragePool(int64_t size) : size_(size) {}
  at::Tensor forward(const at::Tensor& x) const;

 private:
  int64_t size_;
};

}  // namespace dovetail::models
