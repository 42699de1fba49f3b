#include "dovetail/train/trial_step.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/models/gpt.h"
#include "dovetail/models/vision.h"
#include "dovetail/train/config/vision.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/numerics/model_precision.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/vision/step.h"

namespace dovetail::train {
namespace {

at::Generator generator_of(const RunConfig& config) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(config.run.seed));
}

class GptTrial : public TrialStep {
 public:
  GptTrial(const ResolvedRun& run, std::shared_ptr<comm::Group> group, int64_t samples,
           int64_t micro_batch)
      : TrialStep(run.device), run_(run), model_(std::make_shared<models::GPT>(run.config.model)) {
    const RunConfig& config = run.config;
    initialize(*model_, static_cast<uint64_t>(config.run.seed), config.train.init_noise);
    optimizer_.emplace(*model_, config.optimizer);
    quantization_.emplace(set_precision(*model_, config.precision, run.precision.name, run.device));
    optimizer_->bind(*model_);
    step_.emplace(model_, *optimizer_, std::move(group),
                  StepOptions{.micro_batch = micro_batch,
                              .clip = config.train.clip,
                              .bucket_bytes = config.train.bucket_bytes});
    tokens_ = at::randint(config.model.vocab_size, {samples, config.model.context + 1},
                          generator_of(config), at::TensorOptions().dtype(at::kLong));
  }
  void plan_memory(const plan::PlannedStep::Options& options) override {
    step_->plan_memory(options);
  }
  plan::PlannedStep* memory_plan() override { return step_->memory_plan(); }

 private:
  void run_once() override {
    quantization_->begin_step(static_cast<uint64_t>(run_.config.run.seed), /*count=*/false);
    step_->run(tokens_, run_.config.optimizer.lr, /*want_stop=*/false,
               {.maximum_samples = tokens_.size(0)});
  }

  const ResolvedRun& run_;
  std::shared_ptr<models::GPT> model_;
  std::optional<Optimizer> optimizer_;
  std::optional<Quantization> quantization_;
  std::optional<TrainStep> step_;
  at::Tensor tokens_;
};

class VisionTrial : public TrialStep {
 public:
  VisionTrial(const ResolvedRun& run, std::shared_ptr<comm::Group> group, int64_t samples,
              int64_t micro_batch)
      : TrialStep(run.device),
        run_(run),
        model_(models::make_vision_model(vision_config(run.config.vision))) {
    const RunConfig& config = run.config;
    initialize(*model_, static_cast<uint64_t>(config.run.seed));
    optimizer_.emplace(*model_, config.optimizer);
    model_->to(run.device);
    optimizer_->bind(*model_);
    step_.emplace(model_, *optimizer_, std::move(group),
                  VisionStep::Options{.micro_batch = micro_batch,
                                      .clip = config.train.clip,
                                      .bucket_bytes = config.train.bucket_bytes});
    const models::VisionConfig& model = model_->config();
    at::Generator generator = generator_of(config);
    std::vector<int64_t> targets = {samples};
    if (config.learns_masks()) targets.insert(targets.end(), {model.height, model.width});
    batches_.emplace(data::loader_bytes(image_form(model), samples));
    batch_ = {.images = at::rand({samples, model.channels, model.height, model.width}, generator),
              .targets = at::randint(model.classes, targets, generator,
                                     at::TensorOptions().dtype(at::kLong))};
  }
  void plan_memory(const plan::PlannedStep::Options& options) override {
    step_->plan_memory(options);
  }
  plan::PlannedStep* memory_plan() override { return step_->memory_plan(); }

 private:
  void run_once() override {
    step_->run(batch_, run_.config.optimizer.lr, /*want_stop=*/false,
               static_cast<uint64_t>(run_.config.run.seed));
  }

  const ResolvedRun& run_;
  std::shared_ptr<models::VisionModel> model_;
  std::optional<Optimizer> optimizer_;
  std::optional<VisionStep> step_;
  data::ImageBatch batch_;
  std::optional<HeldMemory> batches_;  // batches of a run's loader
};

}  // namespace

ResolvedRun resolve_trial(const RunConfig& config, comm::Group& group) {
  ResolvedRun run = resolve_run(config, group, {.dry_run = true, .quiet = true});
  resolve_precision_and_size(run, group, std::nullopt);
  return run;
}

double TrialStep::run() {
  const double begin_s = now_seconds();
  run_once();
  device_.wait();
  return now_seconds() - begin_s;
}

std::unique_ptr<TrialStep> make_trial(const ResolvedRun& run, std::shared_ptr<comm::Group> group,
                                      int64_t samples, int64_t micro_batch) {
  DOVETAIL_CHECK(run.config.kind() != RunKind::kRecommender, "a recommender has no trial");
  if (run.config.kind() == RunKind::kVision)
    return std::make_unique<VisionTrial>(run, std::move(group), samples, micro_batch);
  return std::make_unique<GptTrial>(run, std::move(group), samples, micro_batch);
}

}  // namespace dovetail::train
