#include <ATen/ATen.h>

#include <array>

#include "dovetail/base/error.h"
#include "dovetail/models/vision_layers.h"
#include "dovetail/models/vision_models.h"

namespace dovetail::models {
namespace {

constexpr int64_t kStages = 5, kPooled = 7;

class Vgg : public VisionModel {
 public:
  Vgg(const VisionConfig& config, c10::Device device);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  Child<Sequence> features_;
  Child<AdaptiveAveragePool> avgpool_;
  Child<Sequence> classifier_;
};

/// Returns stages of 3 x 3 convolutions, each with its ReLU. A pooling follows each stage.
std::shared_ptr<Sequence> make_features(const VisionConfig& config, c10::Device device) {
  const bool deeper = config.preset == "vgg19";
  const std::array<int, kStages> depth =
      deeper ? std::array{2, 2, 4, 4, 4} : std::array{2, 2, 3, 3, 3};
  constexpr std::array<int, kStages> kWidth = {1, 2, 4, 8, 8};
  auto features = std::make_shared<Sequence>();
  int64_t in = config.channels;
  for (size_t stage = 0; stage < kStages; ++stage) {
    const int64_t out = kWidth[stage] * config.base_width;
    for (int i = 0; i < depth[stage]; ++i) {
      features->add(std::make_shared<Convolution>(
          Convolution::Options{.in = in, .out = out, .bias = true, .device = device}));
      features->add(std::make_shared<Relu>(config.in_place));
      in = out;
    }
    features->add(std::make_shared<MaxPool>(2, 2));
  }
  return features;
}

std::shared_ptr<Sequence> make_classifier(const VisionConfig& config, c10::Device device) {
  const int64_t in = 8 * config.base_width * kPooled * kPooled, hidden = 64 * config.base_width;
  auto classifier = std::make_shared<Sequence>();
  for (const int64_t read : {in, hidden}) {
    classifier->add(std::make_shared<Dense>(read, hidden, device));
    classifier->add(std::make_shared<Relu>(config.in_place));
    classifier->add(std::make_shared<Dropout>());
  }
  classifier->add(std::make_shared<Dense>(hidden, config.classes, device));
  return classifier;
}

Vgg::Vgg(const VisionConfig& config, c10::Device device)
    : VisionModel(config),
      features_(*this, "features", make_features(config, device)),
      avgpool_(*this, "avgpool", std::make_shared<AdaptiveAveragePool>(kPooled)),
      classifier_(*this, "classifier", make_classifier(config, device)) {}

at::Tensor Vgg::forward(const at::Tensor& images) {
  check_images(images);
  return classifier_(avgpool_(features_(images)).flatten(1));
}

}  // namespace

std::shared_ptr<VisionModel> make_vgg(const VisionConfig& config, c10::Device device) {
  constexpr int64_t kSmallest = 1 << kStages;
  user_check(config.height >= kSmallest && config.width >= kSmallest,
             "{}: images of {} x {} are too small for five halvings; the smallest are {} x {}",
             config.preset, config.height, config.width, kSmallest, kSmallest);
  return std::make_shared<Vgg>(config, device);
}

}  // namespace dovetail::models
