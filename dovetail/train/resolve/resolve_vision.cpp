#include "dovetail/train/resolve/resolve_vision.h"

#include <fmt/format.h>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/data/images/image_loader.h"
#include "dovetail/models/vision.h"
#include "dovetail/train/config/vision.h"
#include "dovetail/train/ranks/batch_shares.h"

namespace dovetail::train {

namespace {

/// Throws UserError if a batch norm would get one value per channel. A micro-batch of one image
/// whose last stage has one pixel gives one.
void check_batch_norms(const ResolvedRun& run, int ranks) {
  constexpr int64_t kStride = 32;  // stride of the last stage
  const VisionSection& vision = run.config.vision;
  if (vision.model != "resnet50" || vision.height > kStride || vision.width > kStride) return;
  const BatchShares shares(run.config, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t samples = shares.range(rank).size(), last = samples % run.micro_batch;
    user_check(run.micro_batch > 1 && last != 1,
               "images of {} x {} have one pixel in the last stage of resnet50, and a batch norm "
               "needs two. Rank {} has {} images in micro-batches of {}. Change train.batch, "
               "train.micro_batch or vision.height",
               vision.height, vision.width, rank, samples, run.micro_batch);
  }
}

}  // namespace

void check_vision(const ResolvedRun& run, int ranks) {
  user_check(run.config.vision.channels != 2,
             "vision.channels = 2: images have 3 channels (colours) or 1 (brightness)");
  models::make_vision_model(vision_config(run.config.vision), c10::kMeta);
  check_batch_norms(run, ranks);
}

void resolve_vision_size(ResolvedRun& run, comm::Group& group) {
  constexpr int64_t kFloat = sizeof(float);
  run.precision = resolve_precision("fp32", std::nullopt, run.device, group);
  run.precision.recipe = run.config.precision.recipe;
  const VisionSection& vision = run.config.vision;
  const models::VisionSize size = models::vision_size(vision_config(vision));
  run.size = {.parameters = size.parameters,
              .parameters_without_embedding = size.parameters,
              .active_parameters = size.parameters,
              .flops_per_token = size.flops};
  run.memory = {
      .weights = kFloat * size.parameters,
      .gradients = kFloat * size.parameters,
      .optimizer = kFloat * 2 * size.parameters,
      .activations = run.micro_batch * size.activation_bytes,
      .workspace = run.micro_batch * 2 * size.largest_bytes,
      .checkpoint = run.checkpoint_ranks > 0 && run.copies_for_checkpoints()
                        ? kFloat * 3 * size.parameters / run.checkpoint_ranks
                        : 0,
      .all_gradients = kFloat * size.parameters,
      .beside = data::loader_bytes(image_form(vision_config(vision)), run.maximum_samples)};
}

std::string vision_summary(const ResolvedRun& run) {
  const VisionSection& vision = run.config.vision;
  return fmt::format("{} {} parameters · {} x {} x {} · {}", vision.model,
                     format_count(static_cast<double>(run.size.parameters)), vision.channels,
                     vision.height, vision.width, run.precision.name);
}

}  // namespace dovetail::train
