#include "dovetail/train/gpt/trial_step.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>

#include <utility>

#include "dovetail/base/trace.h"
#include "dovetail/train/numerics/model_precision.h"

namespace dovetail::train {

ResolvedRun resolve_trial(const RunConfig& config, comm::Group& group) {
  ResolvedRun run = resolve_run(config, group, {.dry_run = true, .quiet = true});
  resolve_precision_and_size(run, group, std::nullopt);
  return run;
}

TrialStep::TrialStep(const ResolvedRun& run, std::shared_ptr<comm::Group> group, int64_t samples,
                     int64_t micro_batch)
    : run_(run), model_(std::make_shared<models::GPT>(run.config.model)) {
  const RunConfig& config = run.config;
  initialize(*model_, static_cast<uint64_t>(config.run.seed), config.train.init_noise);
  optimizer_.emplace(*model_, config.optimizer);
  quantization_.emplace(set_precision(*model_, config.precision, run.precision.name));
  optimizer_->bind(*model_);
  step_.emplace(model_, *optimizer_, std::move(group),
                StepOptions{.micro_batch = micro_batch,
                            .clip = config.train.clip,
                            .bucket_bytes = config.train.bucket_bytes});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(config.run.seed));
  tokens_ = at::randint(config.model.vocab_size, {samples, config.model.context + 1}, generator,
                        at::TensorOptions().dtype(at::kLong));
}

double TrialStep::run() {
  const double begin_s = now_seconds();
  quantization_->begin_step(static_cast<uint64_t>(run_.config.run.seed), /*count=*/false);
  step_->run(tokens_, run_.config.optimizer.lr, /*want_stop=*/false,
             {.maximum_samples = tokens_.size(0)});
  return now_seconds() - begin_s;
}

}  // namespace dovetail::train
