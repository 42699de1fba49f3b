#include "dovetail/train/config/vision.h"

namespace dovetail::train {

models::VisionConfig vision_config(const VisionSection& vision) {
  return {.preset = vision.model,
          .classes = vision.classes,
          .channels = vision.channels,
          .height = vision.height,
          .width = vision.width,
          .base_width = vision.base_width};
}

data::ImageForm image_form(const models::VisionConfig& config) {
  return {.channels = config.channels,
          .height = config.height,
          .width = config.width,
          .classes = config.classes,
          .masks = config.preset == "unet"};
}

}  // namespace dovetail::train
