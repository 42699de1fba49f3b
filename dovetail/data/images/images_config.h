#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail::data {

/// `[images]`: training data of a vision model. A sample is an image and its target: a class, or a
/// mask with the class of each pixel.
struct ImagesConfig {
  /// Images to train on. For classes: a folder with one folder of images for each class, or an
  /// .npy. For masks: a folder of images, or an .npy.
  std::string train;
  /// Targets of `train`. For an .npy of images: an .npy of classes. For masks: a folder of PNGs
  /// with the images' names, or an .npy. Empty for folders of classes.
  std::string targets;
  std::string validation, validation_targets;  ///< data to measure on, as `train` and `targets`
  double validation_fraction = 0.1;  ///< share of `train` to measure on if `validation` is empty
  std::string crop = "center";       ///< center | random: part of a training image that is seen
  bool mirror = true;                ///< mirror a training image with probability 1/2
  /// Mean and standard deviation of each channel, with values from 0 to 1. One number stands for
  /// all channels.
  std::vector<double> mean = {0.485, 0.456, 0.406}, deviation = {0.229, 0.224, 0.225};
  int64_t threads = 2;  ///< decoding threads of each rank
  void describe(Section& s);

  /// Throws UserError for keys that contradict one another or have no effect.
  void check() const;
};

}  // namespace dovetail::data
