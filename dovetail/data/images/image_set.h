#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace dovetail::data {

/// Form of images and targets that a model needs.
struct ImageForm {
  int64_t channels = 3, height = 224, width = 224;
  int64_t classes = 1000;
  bool masks = false;  ///< a target is a mask with a class for each pixel, else one class
};

/// Rectangle of an image, in pixels.
struct ImagePart {
  int64_t top = 0, left = 0, height = 0, width = 0;
  bool mirrored = false;
};

/// Returns the largest part in the middle of an image of `height` x `width` pixels that has the
/// shape of `form`.
ImagePart center_part(int64_t height, int64_t width, const ImageForm& form);
/// Returns a random part with 8 % to 100 % of the image's area and 3/4 to 4/3 of the shape of
/// `form` (Szegedy et al. 2015, arXiv 1409.4842). Without one in ten attempts: center_part. The
/// part depends on `seed` alone.
ImagePart random_part(int64_t height, int64_t width, const ImageForm& form, uint64_t seed);

/// Images and their targets, in files or in arrays. Nothing but the list of files is in memory.
/// Reading a sample is thread-safe.
class ImageSet {
 public:
  /// `images` and `targets` are as ImagesConfig::train and ImagesConfig::targets. Throws UserError
  /// if they do not exist, do not fit together or do not have the form. The message names the
  /// config's key: `images_key` or `targets_key`.
  ImageSet(const std::filesystem::path& images, const std::filesystem::path& targets,
           const ImageForm& form, const std::string& images_key, const std::string& targets_key);
  ~ImageSet();
  ImageSet(ImageSet&&) noexcept;
  ImageSet& operator=(ImageSet&&) noexcept;

  int64_t size() const;
  /// Returns the number of skipped files: by their names neither PNG nor JPEG, or beside the
  /// folders of classes.
  int64_t skipped() const;
  /// Returns the names of the classes' folders, ascending; empty if targets are numbers.
  const std::vector<std::string>& classes() const;

  /// Sample as stored: an image (channels, height, width) uint8, and its target, int64: a scalar or
  /// (height, width).
  struct Sample {
    at::Tensor image, target;
  };
  /// Throws UserError, naming the file, if it cannot be decoded or a mask has another size than its
  /// image. Also throws for a class that the model does not have.
  Sample read(int64_t index) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Cuts `part` out of a sample and scales it to the form's height and width. Images are averaged
/// over the pixels that fall together (bilinear with antialiasing, as torchvision's Resize), masks
/// take the nearest pixel. The image becomes float32 with values from 0 to 1.
ImageSet::Sample scaled(const ImageSet::Sample& sample, const ImagePart& part,
                        const ImageForm& form);

}  // namespace dovetail::data
