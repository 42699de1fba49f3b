#pragma once

#include "dovetail/models/vision.h"

/// Parts of make_vision_model (models/vision.h), one source file per model. config.classes must be
/// resolved, that is not 0.
namespace dovetail::models {

std::shared_ptr<VisionModel> make_vgg(const VisionConfig& config, c10::Device device);
std::shared_ptr<VisionModel> make_resnet50(const VisionConfig& config, c10::Device device);
std::shared_ptr<VisionModel> make_unet(const VisionConfig& config, c10::Device device);

}  // namespace dovetail::models
