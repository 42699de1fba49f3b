#include <ATen/ATen.h>
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/models/vision_layers.h"
#include "dovetail/models/vision_models.h"

namespace dovetail::models {
namespace {

constexpr int64_t kLevels = 4;

struct LevelOptions {
  int64_t in = 0, out = 0;
  bool in_place = true;
  c10::Device device = c10::kCPU;

  std::shared_ptr<Convolution> convolution(int64_t from) const {
    return std::make_shared<Convolution>(
        Convolution::Options{.in = from, .out = out, .bias = true, .device = device});
  }
};

/// Two convolutions, each with its ReLU.
class DoubleConvolution : public torch::nn::Module {
 public:
  explicit DoubleConvolution(const LevelOptions& o)
      : conv1_(*this, "conv1", o.convolution(o.in)),
        conv2_(*this, "conv2", o.convolution(o.out)),
        relu_(*this, "relu", std::make_shared<Relu>(o.in_place)) {}
  at::Tensor forward(const at::Tensor& x) { return relu_(conv2_(relu_(conv1_(x)))); }

 private:
  Child<Convolution> conv1_, conv2_;
  Child<Relu> relu_;
};

/// Concatenates the skip (B, out, 2 H, 2 W) and the up-sampled x (B, in, H, W), with in = 2 out.
/// Then applies two convolutions.
class Expansion : public torch::nn::Module {
 public:
  explicit Expansion(const LevelOptions& o)
      : upsample_(*this, "upsample", std::make_shared<Upsampling>(o.in, o.out, o.device)),
        conv1_(*this, "conv1", o.convolution(2 * o.out)),
        conv2_(*this, "conv2", o.convolution(o.out)),
        relu_(*this, "relu", std::make_shared<Relu>(o.in_place)) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip) {
    return relu_(conv2_(relu_(conv1_(at::cat({skip, upsample_(x)}, 1)))));
  }

 private:
  Child<Upsampling> upsample_;
  Child<Convolution> conv1_, conv2_;
  Child<Relu> relu_;
};

/// Levels down1 to down4, then bottom, then up4 to up1. The results of the down levels are skips.
/// Each up level reads the skip of the same number.
class UNet : public VisionModel {
 public:
  UNet(const VisionConfig& config, c10::Device device);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  std::vector<Child<DoubleConvolution>> down_;
  Child<MaxPool> pool_;
  std::optional<Child<DoubleConvolution>> bottom_;
  std::vector<Child<Expansion>> up_;  ///< from the bottom to the top
  std::optional<Child<Convolution>> head_;
};

UNet::UNet(const VisionConfig& config, c10::Device device)
    : VisionModel(config), pool_(*this, "pool", std::make_shared<MaxPool>(2, 2)) {
  const auto level = [&](int64_t in, int64_t out) {
    return LevelOptions{.in = in, .out = out, .in_place = config.in_place, .device = device};
  };
  int64_t in = config.channels, out = config.base_width;
  for (int64_t i = 1; i <= kLevels; ++i) {
    down_.emplace_back(*this, fmt::format("down{}", i),
                       std::make_shared<DoubleConvolution>(level(in, out)));
    in = out;
    out *= 2;
  }
  bottom_.emplace(*this, "bottom", std::make_shared<DoubleConvolution>(level(in, out)));
  for (int64_t i = kLevels; i > 0; --i) {
    up_.emplace_back(*this, fmt::format("up{}", i),
                     std::make_shared<Expansion>(level(out, out / 2)));
    out /= 2;
  }
  head_.emplace(
      *this, "head",
      std::make_shared<Convolution>(Convolution::Options{
          .in = out, .out = config.classes, .kernel = 1, .bias = true, .device = device}));
}

at::Tensor UNet::forward(const at::Tensor& images) {
  check_images(images);
  at::Tensor x = images;
  std::vector<at::Tensor> skips;
  for (const auto& down : down_) {
    skips.push_back(down(x));
    x = pool_(skips.back());
  }
  x = (*bottom_)(x);
  for (const auto& up : up_) {
    x = up(x, skips.back());
    skips.pop_back();
  }
  return (*head_)(x);
}

}  // namespace

std::shared_ptr<VisionModel> make_unet(const VisionConfig& config, c10::Device device) {
  constexpr int64_t kMultiple = 1 << kLevels;
  user_check(config.height % kMultiple == 0 && config.width % kMultiple == 0,
             "unet: images of {} x {} cannot be halved four times; height and width must be "
             "multiples of {}",
             config.height, config.width, kMultiple);
  return std::make_shared<UNet>(config, device);
}

}  // namespace dovetail::models
