#pragma once

#include "dovetail/models/vision.h"

/// The models of make_vision_model, a file each; `config` is resolved.
namespace dovetail {

std::shared_ptr<VisionModel> make_vgg(const VisionConfig& config, c10::Device device);
std::shared_ptr<VisionModel> make_resnet50(const VisionConfig& config, c10::Device device);
std::shared_ptr<VisionModel> make_unet(const VisionConfig& config, c10::Device device);

}  // namespace dovetail
