#include <ATen/ATen.h>
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "dovetail/models/vision_layers.h"
#include "dovetail/models/vision_models.h"

namespace dovetail::models {
namespace {

// Ratio of a bottleneck's output channels to the channels of its inner part.
constexpr int64_t kExpansion = 4;

std::shared_ptr<Convolution> convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                                         c10::Device device) {
  return std::make_shared<Convolution>(Convolution::Options{
      .in = in, .out = out, .kernel = kernel, .stride = stride, .device = device});
}

struct BottleneckOptions {
  int64_t in = 0, inner = 0, stride = 1;
  bool in_place = true;
  c10::Device device = c10::kCPU;
};

/// Bottleneck: relu(bn3(conv3(relu(bn2(conv2(relu(bn1(conv1(x)))))))) + x). x is projected if the
/// shapes differ.
class Bottleneck : public torch::nn::Module {
 public:
  explicit Bottleneck(const BottleneckOptions& o);
  at::Tensor forward(const at::Tensor& x);

 private:
  Child<Convolution> conv1_;
  Child<BatchNorm> bn1_;
  Child<Convolution> conv2_;
  Child<BatchNorm> bn2_;
  Child<Convolution> conv3_;
  Child<BatchNorm> bn3_;
  Child<Relu> relu_;
  std::optional<Child<Sequence>> downsample_;
  bool in_place_;
};

Bottleneck::Bottleneck(const BottleneckOptions& o)
    : conv1_(*this, "conv1", convolution(o.in, o.inner, 1, 1, o.device)),
      bn1_(*this, "bn1", std::make_shared<BatchNorm>(o.inner, o.device)),
      conv2_(*this, "conv2", convolution(o.inner, o.inner, 3, o.stride, o.device)),
      bn2_(*this, "bn2", std::make_shared<BatchNorm>(o.inner, o.device)),
      conv3_(*this, "conv3", convolution(o.inner, o.inner * kExpansion, 1, 1, o.device)),
      bn3_(*this, "bn3", std::make_shared<BatchNorm>(o.inner * kExpansion, o.device)),
      relu_(*this, "relu", std::make_shared<Relu>(o.in_place)),
      in_place_(o.in_place) {
  const int64_t out = o.inner * kExpansion;
  if (o.stride == 1 && o.in == out) return;
  auto projection = std::make_shared<Sequence>();
  projection->add(convolution(o.in, out, 1, o.stride, o.device));
  projection->add(std::make_shared<BatchNorm>(out, o.device));
  downsample_.emplace(*this, "downsample", std::move(projection));
}

at::Tensor Bottleneck::forward(const at::Tensor& x) {
  at::Tensor y = relu_(bn1_(conv1_(x)));
  y = relu_(bn2_(conv2_(y)));
  y = bn3_(conv3_(y));
  const at::Tensor residual = downsample_ ? (*downsample_)(x) : x;
  return relu_(in_place_ ? y.add_(residual) : y + residual);
}

std::shared_ptr<Sequence> make_stage(const BottleneckOptions& first, int depth) {
  auto stage = std::make_shared<Sequence>();
  stage->add(std::make_shared<Bottleneck>(first));
  BottleneckOptions further = first;
  further.in = first.inner * kExpansion;
  further.stride = 1;
  for (int i = 1; i < depth; ++i) stage->add(std::make_shared<Bottleneck>(further));
  return stage;
}

class ResNet50 : public VisionModel {
 public:
  ResNet50(const VisionConfig& config, c10::Device device);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  Child<Convolution> conv1_;
  Child<BatchNorm> bn1_;
  Child<Relu> relu_;
  Child<MaxPool> maxpool_;
  std::vector<Child<Sequence>> stages_;
  std::optional<Child<AdaptiveAveragePool>> avgpool_;
  std::optional<Child<Dense>> fc_;
};

ResNet50::ResNet50(const VisionConfig& config, c10::Device device)
    : VisionModel(config),
      conv1_(*this, "conv1", convolution(config.channels, config.base_width, 7, 2, device)),
      bn1_(*this, "bn1", std::make_shared<BatchNorm>(config.base_width, device)),
      relu_(*this, "relu", std::make_shared<Relu>(config.in_place)),
      maxpool_(*this, "maxpool", std::make_shared<MaxPool>(3, 2)) {
  int64_t in = config.base_width, inner = config.base_width;
  for (const int depth : {3, 4, 6, 3}) {
    const auto stage = std::ssize(stages_) + 1;
    const BottleneckOptions first{.in = in,
                                  .inner = inner,
                                  .stride = stage == 1 ? 1 : 2,
                                  .in_place = config.in_place,
                                  .device = device};
    stages_.emplace_back(*this, fmt::format("layer{}", stage), make_stage(first, depth));
    in = inner * kExpansion;
    inner *= 2;
  }
  avgpool_.emplace(*this, "avgpool", std::make_shared<AdaptiveAveragePool>(1));
  fc_.emplace(*this, "fc", std::make_shared<Dense>(in, config.classes, device));
}

at::Tensor ResNet50::forward(const at::Tensor& images) {
  check_images(images);
  at::Tensor x = maxpool_(relu_(bn1_(conv1_(images))));
  for (const auto& stage : stages_) x = stage(x);
  return (*fc_)((*avgpool_)(x).flatten(1));
}

}  // namespace

std::shared_ptr<VisionModel> make_resnet50(const VisionConfig& config, c10::Device device) {
  return std::make_shared<ResNet50>(config, device);
}

}  // namespace dovetail::models
