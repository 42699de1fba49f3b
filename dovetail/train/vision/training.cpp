#include "dovetail/train/vision/training.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"
#include "dovetail/train/config/vision.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/memory/config_section.h"
#include "dovetail/train/vision/trained_vision.h"
#include "dovetail/train/vision/validation.h"

namespace dovetail::train {

VisionTraining::VisionTraining(const ResolvedRun& run, std::shared_ptr<comm::Group> group,
                               RunFolder* folder, bool quiet, RunState state,
                               const io::StoredCheckpoint* checkpoint)
    : TrainingLoop(run, std::move(group), std::move(state)) {
  const RunConfig& config = run_.config;
  const auto seed = static_cast<uint64_t>(config.run.seed);
  const int64_t idle_bytes =
      config.memory.budget.empty() ? 0 : plan::step_device(run_.device).held_bytes();
  std::shared_ptr<plan::PagedAllocations> paged = paged_until_there_is_a_plan(config.memory);
  model_ = models::make_vision_model(vision_config(config.vision));
  if (!resumed()) initialize(*model_, seed);
  loader_.emplace(config.images, image_form(model_->config()),
                  data::ImageLoaderOptions{.seed = seed,
                                           .batch = config.train.batch,
                                           .rank = group_->rank(),
                                           .world = group_->size()});
  if (resumed()) check_images(checkpoint, *loader_, config.images.train, *group_);
  optimizer_.emplace(*model_, config.optimizer);
  model_->to(run_.device);
  optimizer_->bind(*model_);
  if (resumed()) restore_from(checkpoint);
  step_.emplace(model_, *optimizer_, group_,
                VisionStep::Options{.micro_batch = run_.micro_batch,
                                    .clip = config.train.clip,
                                    .bucket_bytes = config.train.bucket_bytes});
  if (!config.memory.budget.empty()) {
    batches_.emplace(data::loader_bytes(image_form(model_->config()), run_.maximum_samples));
    plan::PlannedStep::Options options = memory_options(std::move(paged));
    options.idle_bytes = static_cast<uint64_t>(idle_bytes);
    options.refuse_at_once = true;
    step_->plan_memory(options);
  }
  open_output(folder, quiet);
}

void VisionTraining::restore_from(const io::StoredCheckpoint* checkpoint) {
  std::map<std::string, at::Tensor> tensors;
  comm::on_rank_zero(*group_, "restoring the checkpoint", [&] {
    tensors = checkpoint->snapshot().tensors;
    load_buffers(*model_, tensors);
  });
  load_on_all_ranks(*optimizer_, tensors, state_.updates, *group_);
  share_buffers();
}

void VisionTraining::share_buffers() {
  if (group_->size() == 1) return;
  for (const auto& item : model_->named_buffers()) {
    at::Tensor buffer = item.value();
    group_->broadcast(buffer, 0);
  }
}

StepOutcome VisionTraining::train_step(int64_t number, double lr, bool want_stop,
                                       StepTimings& timings) {
  const BatchShares::Range range = shares_.range(group_->rank());
  const double begin_s = now_seconds();
  loader_->set_part(range.begin, range.end);
  const data::ImageBatch batch = loader_->step(number - 1);
  timings.data_ms = 1e3 * (now_seconds() - begin_s);
  const uint64_t seed =
      mix_seed(static_cast<uint64_t>(config().run.seed), static_cast<uint64_t>(number));
  const StepOutcome outcome =
      step_->run(batch, lr, want_stop, mix_seed(seed, static_cast<uint64_t>(group_->rank())));
  timings.communication_ms = 1e3 * step_->gradients().exposed_s();
  timings.compute_ms = 1e3 * step_->compute_s();
  balance((range.size() + run_.micro_batch - 1) / run_.micro_batch, step_->compute_s(), number + 1);
  return outcome;
}

std::optional<Validation> VisionTraining::evaluate() {
  const int64_t limit = complete() ? 0 : config().eval.max_rows, all = loader_->num_validation();
  const int64_t samples = limit > 0 ? std::min(limit, all) : all;
  if (samples == 0) return std::nullopt;
  share_buffers();
  return validate(
      *model_, samples, run_.micro_batch,
      [&](int64_t begin, int64_t end) { return loader_->validation(begin, end); }, *group_);
}

void VisionTraining::finish(const RunFolder&, bool quiet) {
  if (quiet || !state_.last_evaluated) return;
  const Validation& found = *state_.last_evaluated->validation;
  log_info("validation: {} images, {}", found.tokens, scores_text(found));
}

std::map<std::string, at::Tensor> VisionTraining::checkpoint_tensors() {
  share_buffers();
  std::map<std::string, at::Tensor> tensors = optimizer_->tensors();
  for (const auto& item : model_->named_buffers())
    tensors.emplace(kBufferPrefix + item.key(), item.value());
  return own_part(tensors);
}

nlohmann::json VisionTraining::checkpoint_state() const {
  nlohmann::json state = train::checkpoint_state(state_, run_, nullptr, group_->size());
  state.update(images_state(*loader_));
  return state;
}

}  // namespace dovetail::train
