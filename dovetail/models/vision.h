#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "dovetail/models/loss.h"

namespace dovetail {

struct VisionConfig {
  std::string preset = "resnet50";    ///< vgg16, vgg19, resnet50 or unet
  int64_t classes = 0;                ///< 0: as published, 1000 or (unet) 2
  int64_t channels = 3;               ///< of an image
  int64_t height = 224, width = 224;  ///< of every image; vgg: at least 32; unet: multiples of 16
  int64_t base_width = 64;  ///< channels of the first convolution, which all others scale with
  bool in_place = true;     ///< ReLUs and residual sums overwrite what they read, as in torchvision
};

/// A convolutional network for images (B, channels, height, width), in training mode when made.
///
/// It is of ATen's operators alone, without the fused kernels and without one that waits for a
/// device, so that a step can be captured below autograd. Each layer runs in the LayerScope that
/// its parameters are named by: in "layer1.0.conv1" for layer1.0.conv1.weight. Dropout draws from
/// ATen's default generator. Images and targets stand on the device of the parameters, images in
/// their dtype (float32 when made; `to` changes both).
class VisionModel : public torch::nn::Module {
 public:
  /// Logits: (B, classes), of unet (B, classes, height, width). Throws UserError where the images
  /// are not as above, and where a batch norm in training would have one value to a channel.
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// The sum of cross entropies, in float32 (float64 under float64), over images or, for unet,
  /// pixels. targets (B) or (B, height, width) int64, all in [0, classes): none stands for padding,
  /// and ATen throws on others.
  LossSum loss(const at::Tensor& images, const at::Tensor& targets);

  const VisionConfig& config() const { return config_; }  ///< with the classes resolved

 protected:
  explicit VisionModel(VisionConfig config);
  void check_images(const at::Tensor& images) const;

 private:
  VisionConfig config_;
};

/// The model that `config.preset` names. Parameters are float32 and uninitialised, running
/// statistics 0 and 1; on the meta device they take no memory, and there is no forward. Throws
/// UserError on what the config does not allow.
///
/// vgg16, vgg19  Simonyan and Zisserman 2014 (arXiv 1409.1556), configurations D and E, with
/// biases. The last pooling is
///               adaptive, to 7 x 7, so that any size from 32 fits. The classifier's hidden layers
///               have 64 base_width units. 138,357,544 and 143,667,240 parameters.
/// resnet50      He et al. 2015 (arXiv 1512.03385), v1.5: a bottleneck's stride is in its 3 x 3
/// convolution.
///               25,557,032 parameters.
/// unet          Ronneberger et al. 2015 (arXiv 1505.04597) with padded convolutions: logits have
/// the images' size and
///               skips are concatenated uncropped. Four levels, biases, no batch norm, no dropout.
///
/// Names and shapes of parameters and buffers in vgg and resnet50 are those of torchvision.
std::shared_ptr<VisionModel> make_vision_model(const VisionConfig& config,
                                               c10::Device device = c10::kCPU);

/// Convolutions: normal of variance 2 / fan (He et al. 2015, arXiv 1502.01852), the fan that of the
/// outputs as in torchvision, for unet that of the inputs as in its paper. Linears: normal of
/// deviation 0.01. Each is a function of seed and name. Batch norms: 1 and 0, running statistics as
/// new. Biases: 0.
void initialize(VisionModel& model, uint64_t seed);

}  // namespace dovetail
