#include "dovetail/train/training.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "dovetail/base/gpu.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/trace.h"
#include "dovetail/train/collective.h"
#include "dovetail/train/schedule.h"
#include "dovetail/train/stop.h"
#include "dovetail/train/validation.h"

namespace dovetail {

Training::Training(const ResolvedRun& run, std::shared_ptr<Group> group, RunFolder* folder, bool quiet, RunState state,
                   const std::map<std::string, at::Tensor>& tensors)
    : run_(run),
      group_(std::move(group)),
      state_(std::move(state)),
      parallel_(run.config, group_),
      begin_s_(now_seconds()) {
  const RunConfig& config = run_.config;
  model_ = std::make_shared<GPT>(config.model, c10::kCPU, parallel_.ranks());
  model_->checkpoint_activations = config.train.checkpoint_activations;
  const bool resumed = state_.step > 0 || !state_.resumed_from.empty();
  if (!resumed) initialize(*model_, static_cast<uint64_t>(config.run.seed), config.train.init_noise);
  optimizer_.emplace(*model_, config.optimizer);
  model_->set_compute_dtype(run_.precision.compute);
  model_->to(run_.device);
  quantization_.emplace(*model_, config.precision, run_.precision.name);
  optimizer_->bind(*model_);
  expert_load_.emplace(*model_);
  router_bias_.emplace(*model_);
  plans_.emplace(*model_, config, run_.micro_batch * config.model.context, run_.precision.compute, parallel_, *group_);
  if (folder != nullptr && !quiet && !plans_->choice().empty()) log_info("{}", plans_->choice());
  if (resumed) {
    std::map<std::string, at::Tensor> of_optimizer, of_quantization, of_routers;
    for (const auto& [name, tensor] : tensors) {
      const bool quantizes = name.starts_with(Quantization::kTensorPrefix),
                 routes = name.starts_with(RouterBias::kTensorPrefix);
      (quantizes ? of_quantization : routes ? of_routers : of_optimizer)[name] = tensor;
    }
    restore(*optimizer_, *model_, parallel_, of_optimizer, state_.updates, *group_);
    quantization_->load(of_quantization, *group_);
    router_bias_->load(of_routers, *group_);
  }
  step_.emplace(model_, *optimizer_, group_,
                StepOptions{.micro_batch = run_.micro_batch,
                            .clip = config.train.clip,
                            .bucket_bytes = config.train.bucket_bytes,
                            .gradient_groups = parallel_.gradient_groups(*model_)});
  loader_.emplace(config.data, LoaderOptions{.seed = static_cast<uint64_t>(config.run.seed),
                                             .batch = config.train.batch,
                                             .context = config.model.context,
                                             .total_steps = config.train.steps,
                                             .rank = group_->rank(),
                                             .world = group_->size()});
  if (folder != nullptr) {
    output_.emplace(*folder, config, state_.step, quiet);
    checkpoints_.emplace(folder->checkpoints(), CheckpointFolder::Options{.keep = config.checkpoint.keep});
  }
}

void Training::run() {
  const StopSignals signals;
  for (bool stop = false; !stop && !complete();) stop = advance();
  on_rank_zero(*group_, "saving the checkpoint", [&] { checkpoints_->wait(); });
  if (output_) output_->finish();
}

bool Training::time_is_up() const {
  const double limit_s = run_.config.train.time_limit_s;
  return limit_s > 0 && now_seconds() - begin_s_ >= limit_s;
}

bool Training::advance() {
  StepTimings timings;
  const bool stop = train_step(timings);
  report_quantization();  // before evaluation adds to it
  report_expert_load();
  plans_->end_step(state_.step, *group_);
  evaluate_if_due(timings);
  if (output_) output_->write(*state_.last);
  check_skipped();
  save_if_due(stop, timings);
  timings.time_s = now_seconds() - begin_s_;
  if (output_) output_->write(*state_.last, timings);
  return stop;
}

bool Training::train_step(StepTimings& timings) {
  const RunConfig& config = run_.config;
  const int64_t number = state_.step + 1;
  const double lr = learning_rate(config.schedule, config.optimizer.lr, state_.step, config.train.steps);
  if (output_) output_->begin_step(number);
  const double begin_s = now_seconds();
  const at::Tensor tokens = loader_->step(state_.step);
  const double data_s = now_seconds() - begin_s;
  const uint64_t seed = mix_seed(static_cast<uint64_t>(config.run.seed), static_cast<uint64_t>(number));
  quantization_->begin_step(mix_seed(seed, static_cast<uint64_t>(group_->rank())), quantization_report_due(number));
  expert_load_->begin_step();
  const StepOutcome outcome = step_->run(tokens, lr, stop_requested() || time_is_up(),
                                         {.seed = seed,
                                          .first_sample = config.train.batch * group_->rank() / group_->size(),
                                          .most_samples = run_.most_samples});
  if (!outcome.skipped) {
    quantization_->end_step(*group_);
    router_bias_->end_step(*group_);
  }
  const double step_s = now_seconds() - begin_s;
  if (output_) output_->end_step(number);

  state_.step = number;
  state_.tokens += outcome.tokens;
  state_.updates = optimizer_->updates();
  state_.skipped_in_a_row = outcome.skipped ? state_.skipped_in_a_row + 1 : 0;
  state_.last = StepMetrics{.step = number,
                            .loss = outcome.loss,
                            .router_loss = outcome.router_loss,
                            .lr = lr,
                            .grad_norm = outcome.grad_norm,
                            .tokens = state_.tokens,
                            .skipped = outcome.skipped};
  timings = {.step = number,
             .step_ms = 1e3 * step_s,
             .data_ms = 1e3 * data_s,
             .communication_ms = 1e3 * step_->gradients().exposed_s(),
             .tokens_per_s = static_cast<double>(outcome.tokens) / step_s,
             .memory_bytes = run_.device.is_cuda() ? gpu_memory().allocated_bytes : resident_bytes()};
  const double peak_flops = run_.precision.peak_flops * group_->size();
  if (peak_flops > 0) timings.utilization = timings.tokens_per_s * run_.size.flops_per_token / peak_flops;
  return outcome.stop;
}

void Training::evaluate_if_due(StepTimings& timings) {
  const EvalSection& eval = run_.config.eval;
  const bool due = complete() || (eval.every_steps > 0 && state_.step % eval.every_steps == 0);
  if (!due) return;
  const double begin_s = now_seconds();
  state_.last->validation = validate(*model_, store(), *group_,
                                     {.context = run_.config.model.context,
                                      .batch = run_.micro_batch,
                                      .max_tokens = complete() ? 0 : eval.max_tokens,
                                      .device = run_.device});
  if (state_.last->validation) state_.last_evaluated = state_.last;
  timings.evaluation_ms = 1e3 * (now_seconds() - begin_s);
}

bool Training::quantization_report_due(int64_t step) const {
  const int64_t every = run_.config.log.quantization_every;
  const bool here = output_ || parallel_.ranks();  // others' experts are theirs to count
  if (!here || every == 0 || quantization_->layers().empty()) return false;
  return step % every == 0 || step >= run_.config.train.steps;
}

void Training::report_quantization() {
  if (!quantization_report_due(state_.step)) return;
  const nlohmann::ordered_json statistics = parallel_.joined(quantization_->statistics(state_.step));
  if (!output_) return;
  output_->write_quantization(statistics);
  for (const std::string& line : quantization_->warnings(statistics)) output_->warn(line);
}

void Training::report_expert_load() {
  const int64_t every = run_.config.log.experts_every;
  if (every == 0 || expert_load_->empty() || (state_.step % every != 0 && !complete())) return;
  nlohmann::ordered_json statistics = expert_load_->statistics(state_.step, *group_);
  if (!plans_->empty()) {
    const nlohmann::ordered_json plans = plans_->plans();
    for (size_t i = 0; i < plans.size(); ++i) statistics["layers"][i].update(plans[i]);
    statistics["all_to_all"] = plans_->traffic(state_.step, *group_);
  }
  if (output_) output_->write_experts(statistics);
}

void Training::check_skipped() {
  if (!state_.last->skipped) return;
  const char* which = std::isfinite(state_.last->loss) ? "gradient norm" : "loss";
  const std::string what = fmt::format("step {}: the {} is not finite", state_.step, which);
  if (output_) output_->warn(fmt::format("{}: skipped, {} in a row", what, state_.skipped_in_a_row));
  if (state_.skipped_in_a_row < run_.config.train.max_skipped_steps) return;
  throw std::runtime_error(fmt::format(
      "{} for {} steps in a row (train.max_skipped_steps); lower optimizer.lr or lengthen schedule.warmup_steps. "
      "Checkpoints hold finite weights only; {}",
      what, state_.skipped_in_a_row,
      saved_step_ < 0 ? "none was saved by this process" : fmt::format("the last one is step {}", saved_step_)));
}

void Training::save_if_due(bool stopping, StepTimings& timings) {
  const int64_t every = run_.config.checkpoint.every_steps;
  const bool due = stopping || complete() || (every > 0 && state_.step % every == 0);
  if (!due) return;
  const double begin_s = now_seconds();
  std::map<std::string, at::Tensor> tensors = parallel_.gathered(*model_, optimizer_->tensors());
  on_rank_zero(*group_, "saving a checkpoint", [&] {
    // The checkpoint builds on these lines: they must be on the disk before it gets its name.
    output_->sync();
    tensors.merge(quantization_->tensors());
    tensors.merge(router_bias_->tensors());
    checkpoints_->save_async({.step = state_.step,
                              .tensors = std::move(tensors),
                              .state = checkpoint_state(state_, run_, store().tokenizer(), group_->size())});
  });
  saved_step_ = state_.step;
  timings.checkpoint_ms = 1e3 * (now_seconds() - begin_s);
}

}  // namespace dovetail
