#include "dovetail/data/images/image_loader.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/threads.h"
#include "dovetail/data/files/prefetch.h"

namespace dovetail::data {
namespace {

/// Batches that are ready before the current one ends.
constexpr size_t kAhead = 1;
/// Key of the permutation that holds samples out.
constexpr uint64_t kHeldOut = 0x76616c6964;

/// Runs work(0) to work(count - 1) on `threads` new threads, each without helpers. Rethrows the
/// exception of the first index that fails.
void run_on_threads(int64_t count, int64_t threads, const std::function<void(int64_t)>& work) {
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  int64_t failed = count;
  const auto run = [&] {
    compute_alone();
    for (int64_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) failure = std::current_exception();
        failed = std::min(failed, i);
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (int64_t t = 0; t < std::min(threads, count); ++t) workers.emplace_back(run);
  }
  if (failure) std::rethrow_exception(failure);
}

/// Returns `given`, or for one channel `one` in place of the default for three.
std::vector<double> for_channels(const std::vector<double>& given,
                                 const std::vector<double>& by_default, double one,
                                 int64_t channels) {
  return channels == 1 && given == by_default ? std::vector{one} : given;
}

at::Tensor per_channel(const std::vector<double>& values, int64_t channels, const char* key) {
  user_check(values.size() == 1 || std::ssize(values) == channels,
             "{} has {} numbers, but images have {} channels; give one number, or one for each",
             key, values.size(), channels);
  for (const double value : values)
    user_check(std::isfinite(value), "{} has the number {}, but must be finite", key, value);
  return at::tensor(values).to(at::kFloat).view({-1, 1, 1}).expand({channels, 1, 1}).contiguous();
}

}  // namespace

int64_t loader_bytes(const ImageForm& form, int64_t samples) {
  constexpr int64_t kBatches = kAhead + 2;
  const int64_t pixels = form.height * form.width;
  const auto image = static_cast<int64_t>(sizeof(float)) * form.channels * pixels,
             target = static_cast<int64_t>(sizeof(int64_t)) * (form.masks ? pixels : 1);
  return kBatches * samples * (image + target);
}

std::vector<double> mean_of(const ImagesConfig& config, int64_t channels) {
  return for_channels(config.mean, ImagesConfig().mean, 0.449, channels);
}

std::vector<double> deviation_of(const ImagesConfig& config, int64_t channels) {
  return for_channels(config.deviation, ImagesConfig().deviation, 0.226, channels);
}

struct ImageLoader::State {
  ImagesConfig config;
  ImageForm form;
  ImageLoaderOptions options;
  ImageSet train;
  std::optional<ImageSet> validation;  ///< nullopt: samples of `train` are held out
  at::Tensor mean, deviation;
  int64_t held_out = 0;  ///< samples of `train` that are not trained on
  int64_t begin = 0, end = 0;
  std::optional<Prefetcher<ImageBatch>> prefetcher;

  State(const ImagesConfig& images, const ImageForm& wanted, const ImageLoaderOptions& given)
      : config(images),
        form(wanted),
        options(given),
        train(config.train, config.targets, form, options.train_key, options.targets_key),
        mean(per_channel(mean_of(config, form.channels), form.channels, "images.mean")),
        deviation(
            per_channel(deviation_of(config, form.channels), form.channels, "images.deviation")) {
    if (!config.validation.empty()) {
      validation.emplace(config.validation, config.validation_targets, form, "images.validation",
                         "images.validation_targets");
      user_check(validation->classes() == train.classes(),
                 "images.validation = \"{}\" has other folders of classes than images.train",
                 config.validation);
    } else {
      held_out =
          static_cast<int64_t>(config.validation_fraction * static_cast<double>(train.size()));
      user_check(held_out > 0 || config.validation_fraction == 0,
                 "images.validation_fraction = {} of {} images holds none out; raise it, or set it "
                 "to 0",
                 config.validation_fraction, train.size());
    }
    set_part(options.rank * options.batch / options.world,
             (options.rank + 1) * options.batch / options.world);
  }

  void set_part(int64_t first, int64_t last) {
    if (prefetcher && first == begin && last == end) return;
    prefetcher.reset();  // its thread reads `begin` and `end`
    begin = first;
    end = last;
    prefetcher.emplace([this](int64_t step) { return make(step); }, kAhead);
  }

  int64_t num_train() const { return train.size() - held_out; }

  /// Returns the index in `train` of training sample i. From i = num_train() on, samples are held
  /// out.
  int64_t kept(int64_t i) const {
    return held_out == 0
               ? i
               : static_cast<int64_t>(permuted_index(kHeldOut, static_cast<uint64_t>(i),
                                                     static_cast<uint64_t>(train.size())));
  }

  /// Reads `count` samples, given by read(i), to one batch.
  ImageBatch batch(int64_t count, const std::function<ImageSet::Sample(int64_t)>& read) const {
    ImageBatch out{.images = at::empty({count, form.channels, form.height, form.width}),
                   .targets = form.masks ? at::empty({count, form.height, form.width}, at::kLong)
                                         : at::empty({count}, at::kLong)};
    run_on_threads(count, config.threads, [&](int64_t i) {
      const c10::NoGradGuard no_grad;
      const ImageSet::Sample sample = read(i);
      at::Tensor image = out.images[i], target = out.targets[i];
      at::sub_out(image, sample.image, mean);
      image.div_(deviation);
      target.copy_(sample.target);
    });
    return out;
  }

  ImageBatch make(int64_t step) const {
    const auto size = static_cast<uint64_t>(num_train());
    return batch(end - begin, [&](int64_t i) {
      const auto position = static_cast<uint64_t>(step * options.batch + begin + i);
      const uint64_t epoch = position / size;
      const auto which = static_cast<int64_t>(
          permuted_index(mix_seed(options.seed, epoch), position % size, size));
      const ImageSet::Sample sample = train.read(kept(which));
      const int64_t height = sample.image.size(1), width = sample.image.size(2);
      const uint64_t key = mix_seed(options.seed, position);
      ImagePart part = config.crop == "random" ? random_part(height, width, form, key)
                                               : center_part(height, width, form);
      part.mirrored = config.mirror && random_below(key, RandomStream::kMirror, 0, 2) == 1;
      return scaled(sample, part, form);
    });
  }

  ImageBatch validation_batch(int64_t first, int64_t last) const {
    return batch(last - first, [&](int64_t i) {
      const ImageSet::Sample sample =
          validation ? validation->read(first + i) : train.read(kept(num_train() + first + i));
      return scaled(sample, center_part(sample.image.size(1), sample.image.size(2), form), form);
    });
  }
};

ImageLoader::ImageLoader(const ImagesConfig& config, const ImageForm& form,
                         const ImageLoaderOptions& options)
    : state_(std::make_unique<State>(config, form, options)) {}
ImageLoader::~ImageLoader() = default;

ImageBatch ImageLoader::step(int64_t step) { return state_->prefetcher->take(step); }
void ImageLoader::set_part(int64_t begin, int64_t end) { state_->set_part(begin, end); }
ImageBatch ImageLoader::validation(int64_t begin, int64_t end) const {
  return state_->validation_batch(begin, end);
}
int64_t ImageLoader::num_train() const { return state_->num_train(); }
int64_t ImageLoader::num_validation() const {
  return state_->validation ? state_->validation->size() : state_->held_out;
}
const std::vector<std::string>& ImageLoader::classes() const { return state_->train.classes(); }

std::string ImageLoader::summary() const {
  const std::string classes =
      this->classes().empty() ? "" : fmt::format(" in {} folders", this->classes().size());
  const int64_t skipped = state_->train.skipped();
  return fmt::format("images: {} to train on{}, {} to measure on{}", num_train(), classes,
                     num_validation(),
                     skipped == 0 ? "" : fmt::format("; {} other files skipped", skipped));
}

}  // namespace dovetail::data
