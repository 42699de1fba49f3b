#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "dovetail/models/loss.h"

namespace dovetail::models {

/// Config of a convolutional network for images.
struct VisionConfig {
  std::string preset = "resnet50";  ///< vgg16, vgg19, resnet50 or unet
  int64_t classes = 0;   ///< 0: number of the model's paper, 2 for unet and 1000 for the others
  int64_t channels = 3;  ///< channels of an image
  /// Pixels of each image. vgg needs at least 32, unet multiples of 16.
  int64_t height = 224, width = 224;
  int64_t base_width = 64;  ///< channels of the first convolution; all other widths scale with it
  bool in_place = true;     ///< ReLUs and residual sums overwrite their input, as in torchvision
};

/// Convolutional network for images (B, channels, height, width), created in training mode.
///
/// It uses ATen's operators only: no fused kernels, and no operator that waits for a device. A
/// training step can therefore be recorded as a list of the operators that it calls below autograd
/// (plan/record/capture.h). Each layer runs in a LayerScope (base/layer_scope.h) with the prefix of
/// its parameters' names. Example: the layer with parameter layer1.0.conv1.weight runs in
/// "layer1.0.conv1". Dropout uses ATen's default random generator.
///
/// Images and targets must be on the device of the parameters. Images must have the dtype of the
/// parameters. In a new model the parameters are float32. Module::to changes their device and
/// dtype.
class VisionModel : public torch::nn::Module {
 public:
  /// Returns logits (B, classes), or (B, classes, height, width) for unet. Throws UserError for
  /// images whose shape, dtype or device is not as described above. Also throws if a batch norm in
  /// training would get one value per channel.
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// Returns the sum of cross entropies over images or, for unet, pixels. It is float32, or float64
  /// if the logits are. targets: (B), for unet (B, height, width), int64 in [0, classes). ATen
  /// throws for other targets; no value stands for padding.
  LossSum loss(const at::Tensor& images, const at::Tensor& targets);

  const VisionConfig& config() const { return config_; }  ///< config with resolved `classes`

 protected:
  explicit VisionModel(VisionConfig config);
  /// Throws UserError as `forward` does for wrong images.
  void check_images(const at::Tensor& images) const;

 private:
  VisionConfig config_;
};

/// Cost of one image in training.
struct VisionSize {
  int64_t parameters = 0;
  /// FLOPs of forward and backward: 6 for each product of a value and a weight in forward. (The
  /// first convolution needs no gradient of its input, but counts as the others.)
  double flops = 0;
  int64_t activation_bytes = 0;  ///< new results of all operators in forward, float32
  int64_t largest_bytes = 0;     ///< largest of these results
};
/// Computes the cost on the meta device, without memory. Throws UserError for an invalid config.
VisionSize vision_size(const VisionConfig& config);

/// Creates the model that `config.preset` names. Parameters are float32 and uninitialised; running
/// means are 0 and running variances 1. On the meta device, parameters and results take no memory.
/// Throws UserError for an invalid config.
///
/// - vgg16, vgg19: Simonyan and Zisserman 2014 (arXiv 1409.1556), configurations D and E, with
///   biases. The last pooling is adaptive, to 7 x 7, so that any size from 32 fits. The
///   classifier's hidden layers have 64 base_width units. 138,357,544 and 143,667,240 parameters.
/// - resnet50: He et al. 2015 (arXiv 1512.03385), v1.5. The stride of a bottleneck block is in its
///   3 x 3 convolution. 25,557,032 parameters.
/// - unet: Ronneberger et al. 2015 (arXiv 1505.04597), but with padded convolutions. Logits thus
///   have the images' size, and skips are concatenated uncropped. It has four levels, biases, no
///   batch norm and no dropout.
///
/// In vgg and resnet50, parameters and buffers have the names and shapes of torchvision.
std::shared_ptr<VisionModel> make_vision_model(const VisionConfig& config,
                                               c10::Device device = c10::kCPU);

/// Initializes the parameters as a function of seed and name:
///
/// - Convolution weights are normal (He et al. 2015, arXiv 1502.01852). In vgg and resnet50 the
///   variance is 2 / fan_out, as in torchvision. In unet it is 2 / fan_in, as in its paper.
/// - Linear weights are normal with standard deviation 0.01.
/// - Weights of batch norms are 1. Running means are reset to 0, running variances to 1.
/// - Biases are 0.
///
/// The number of outputs that read one input value is fan_out: output channels * kernel^2. Strides
/// do not change it. The number of inputs that one output value reads is fan_in: input channels *
/// kernel^2. In unet's up-sampling, where kernels do not overlap, it is the number of input
/// channels.
void initialize(VisionModel& model, uint64_t seed);

}  // namespace dovetail::models
