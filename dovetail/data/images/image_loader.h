#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/images/image_set.h"
#include "dovetail/data/images/images_config.h"

namespace dovetail::data {

/// Images (B, channels, height, width) float32, normalized, and targets, int64: classes (B) or
/// masks (B, height, width).
struct ImageBatch {
  at::Tensor images, targets;
};

/// Returns ImagesConfig::mean and deviation for images of `channels` channels. One channel has
/// defaults of its own: 0.449 and 0.226, the values of ImageNet's brightness.
std::vector<double> mean_of(const ImagesConfig& config, int64_t channels);
std::vector<double> deviation_of(const ImagesConfig& config, int64_t channels);

struct ImageLoaderOptions {
  uint64_t seed = 0;  ///< seed of order, crops and mirroring
  int64_t batch = 1;  ///< samples of a step, summed over all ranks
  /// Index of this rank, and number of ranks. Rank r gets these samples of a step:
  /// [r * batch / world, (r + 1) * batch / world).
  int rank = 0, world = 1;
  /// Names of ImagesConfig::train and targets in messages.
  const char *train_key = "images.train", *targets_key = "images.targets";
};

/// Returns the bytes of the batches that a loader holds: the current one, the next, and one that is
/// being made. Each has `samples` samples.
int64_t loader_bytes(const ImageForm& form, int64_t samples);

/// Loads the batches of a training run, and its validation samples.
///
/// Position p = s * batch + i is sample i of step s; positions continue from epoch to epoch. Each
/// epoch has each training sample once, in an order of its own. Sample, crop and mirroring at a
/// position depend on (seed, position) alone. So a run resumes exactly at any step and with another
/// number of ranks. One thread prefetches the next steps; `config.threads` threads decode.
///
/// Memory: three batches (loader_bytes), and the files that the decoding threads read.
class ImageLoader {
 public:
  /// Throws UserError as ImageSet does, and if no sample is left for training or, with
  /// validation_fraction above 0, for validation.
  ImageLoader(const ImagesConfig& config, const ImageForm& form, const ImageLoaderOptions& options);
  ~ImageLoader();

  /// Returns this rank's samples of `step`. Fast if steps are requested in order.
  ImageBatch step(int64_t step);
  /// Sets the part of each step that later calls of `step` return: samples [begin, end).
  void set_part(int64_t begin, int64_t end);
  /// Returns samples [begin, end) of the validation samples.
  ImageBatch validation(int64_t begin, int64_t end) const;

  int64_t num_train() const;
  int64_t num_validation() const;
  /// Returns the names of the classes' folders, ascending; empty if targets are numbers.
  const std::vector<std::string>& classes() const;
  /// Returns a line for the log: numbers of images and classes.
  std::string summary() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::data
