#pragma once

#include "dovetail/data/images/image_set.h"
#include "dovetail/models/vision.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Returns the model's config for [vision].
models::VisionConfig vision_config(const VisionSection& vision);
/// Returns the form of images and targets that a model needs.
data::ImageForm image_form(const models::VisionConfig& config);

}  // namespace dovetail::train
