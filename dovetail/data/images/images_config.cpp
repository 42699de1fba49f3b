#include "dovetail/data/images/images_config.h"

#include "dovetail/base/error.h"

namespace dovetail::data {

void ImagesConfig::describe(Section& s) {
  s.value("train", train,
          "Images to train on. A folder with a folder of images for each class, or an .npy: (N, "
          "height, width) or (N, height, width, channels) uint8. With masks: a folder of images, "
          "or an .npy. Images are PNG or JPEG");
  s.value("targets", targets,
          "Targets of train. For an .npy of images: an .npy of their classes, (N) integers. For "
          "unet: a folder of masks, PNGs with the names of the images, or an .npy, (N, height, "
          "width) integers. Empty: the folders of train are the classes");
  s.value("validation", validation,
          "Images to measure on, as train. Empty: a share of train is held out");
  s.value("validation_targets", validation_targets, "Targets of validation, as targets");
  s.value("validation_fraction", validation_fraction,
          "Share of train that is held out. Which samples are held out depends on their number "
          "alone. Not used with validation")
      .range(0, 0.9);
  s.value("crop", crop,
          "Part of a training image that is scaled to the model's size. center: the largest part "
          "of the model's shape. random: a random part of 8 % to 100 % of the area and of 3/4 to "
          "4/3 of the shape (Szegedy et al. 2015). Validation has center")
      .choices({"center", "random"});
  s.value("mirror", mirror, "Mirror training images left to right with probability 1/2");
  s.value("mean", mean,
          "Mean of each channel, subtracted from values between 0 and 1; one number for all. One "
          "channel has the default 0.449");
  s.value("deviation", deviation,
          "Standard deviation of each channel, by which values are divided. One channel has the "
          "default 0.226")
      .above(0);
  s.value("threads", threads, "Decoding threads of each rank").range(1, 256);
}

void ImagesConfig::check() const {
  user_check(!train.empty(),
             "images.train is empty; name the images, for example --set images.train=data/train");
  user_check(validation.empty() || validation_fraction == ImagesConfig().validation_fraction,
             "images.validation_fraction = {} does nothing beside images.validation; leave it out",
             validation_fraction);
  user_check(!validation.empty() || validation_targets.empty(),
             "images.validation_targets is given without images.validation; name the images, too");
}

}  // namespace dovetail::data
