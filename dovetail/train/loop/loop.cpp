#include "dovetail/train/loop/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "dovetail/base/gpu.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"
#include "dovetail/train/memory/config_section.h"
#include "dovetail/train/optimizer/lr_schedule.h"
#include "dovetail/train/ranks/checkpoint_writers.h"
#include "dovetail/train/run/stop.h"

namespace dovetail::train {
namespace {

/// Returns the memory for copies of table rows that wait to be written to a checkpoint.
int64_t copied_bytes(const ResolvedRun& run) {
  return std::clamp(static_cast<int64_t>(run.available_bytes) / run.local_ranks / 16,
                    int64_t{32} << 20, int64_t{1} << 30);
}

}  // namespace

TrainingLoop::TrainingLoop(const ResolvedRun& run, std::shared_ptr<comm::Group> group,
                           RunState state)
    : run_(run),
      group_(std::move(group)),
      state_(std::move(state)),
      shares_(run_.config, group_->size(), state_.shares),
      total_steps_(run.config.train.steps),
      begin_s_(now_seconds()) {}

void TrainingLoop::open_output(RunFolder* folder, bool quiet) {
  if (folder != nullptr) output_.emplace(*folder, config(), state_.step, total_steps_, quiet);
  if (config().checkpoint.every_steps == 0) return;
  checkpoints_.emplace(
      config().folder() / "checkpoints",
      io::CheckpointFolder::Options{.keep = config().checkpoint.keep,
                                    .beside_training = run_.copies_for_checkpoints(),
                                    .copied_bytes = copied_bytes(run_),
                                    .writers = checkpoint_writers(*group_)});
}

void TrainingLoop::run() {
  const StopSignals signals;
  for (bool stop = false; !stop && !complete();) stop = advance();
  if (checkpoints_) checkpoints_->wait();
  if (output_) output_->finish();
}

bool TrainingLoop::time_is_up() const {
  const double limit_s = config().train.time_limit_s;
  return limit_s > 0 && now_seconds() - begin_s_ >= limit_s;
}

bool TrainingLoop::advance() {
  StepTimings timings;
  const double begin_s = now_seconds();
  std::optional<Validation> before = evaluate_before(state_.step + 1);
  if (before) timings.evaluation_ms = 1e3 * (now_seconds() - begin_s);
  const bool stop = take_step(timings);
  record(std::move(before));
  report_shares();
  // Reports precede evaluation, which adds to the same counters.
  report_step();
  if (memory_plan() != nullptr && output_)
    memory_plan_log_.report(*memory_plan(), config().folder(), complete());
  evaluate_if_due(timings);
  if (output_) output_->write(*state_.last);
  check_skipped();
  save_if_due(stop, timings);
  timings.time_s = now_seconds() - begin_s_;
  if (output_) output_->write(*state_.last, timings);
  return stop;
}

bool TrainingLoop::take_step(StepTimings& timings) {
  const int64_t number = state_.step + 1;
  const double lr =
      learning_rate(config().schedule, config().optimizer.lr, state_.step, total_steps_);
  moved_.reset();
  if (output_) output_->begin_step(number);
  const double begin_s = now_seconds();
  const StepOutcome outcome = train_step(number, lr, stop_requested() || time_is_up(), timings);
  const double step_s = now_seconds() - begin_s;
  if (output_) output_->end_step(number);

  state_.step = number;
  state_.tokens += outcome.tokens;
  state_.updates = updates();
  state_.skipped_in_a_row = outcome.skipped ? state_.skipped_in_a_row + 1 : 0;
  state_.last = StepMetrics{.step = number,
                            .loss = outcome.loss,
                            .router_loss = outcome.router_loss,
                            .auxiliary_loss = outcome.auxiliary_loss,
                            .lr = lr,
                            .grad_norm = outcome.grad_norm,
                            .tokens = state_.tokens,
                            .samples = config().kind() != RunKind::kGpt,
                            .skipped = outcome.skipped};
  timings.step = number;
  timings.step_ms = 1e3 * step_s;
  timings.samples = config().kind() != RunKind::kGpt;
  timings.tokens_per_s = static_cast<double>(outcome.tokens) / step_s;
  timings.memory_bytes = run_.device.is_cuda() ? gpu_allocated_bytes() : resident_bytes();
  const double peak_flops = run_.precision.peak_flops * group_->size();
  // The owner has this peak. Executors that share its step have others.
  if (peak_flops > 0 && timings.executors.empty())
    timings.utilization = timings.tokens_per_s * run_.size.flops_per_token / peak_flops;
  return outcome.stop;
}

void TrainingLoop::balance(int64_t micro_batches, double compute_s, int64_t next) {
  if (!shares_.automatic() || next > total_steps_) return;
  const bool tells = memory_plan() == nullptr || memory_plan()->runs_by_plan();
  if (auto move = shares_.add(*group_, tells ? micro_batches : 0, compute_s))
    moved_.emplace(next, std::move(*move));
  state_.shares = shares_.micro_batches();
}

void TrainingLoop::report_shares() {
  if (output() == nullptr || shares_.micro_batches().empty()) return;
  if (!said_shares_) output()->write_shares(shares_line(state_.step, shares_.micro_batches()));
  said_shares_ = true;
  if (!moved_) return;
  output()->write_shares(shares_line(moved_->first, moved_->second));
  output()->say(
      fmt::format("balance: from step {} on {}", moved_->first, move_line(moved_->second)));
}

void TrainingLoop::evaluate_if_due(StepTimings& timings) {
  const int64_t every = config().eval.every_steps;
  if (!complete() && (every == 0 || state_.step % every != 0)) return;
  const double begin_s = now_seconds();
  if (memory_plan() != nullptr) memory_plan()->release_scratch();
  record(evaluate());
  timings.evaluation_ms += 1e3 * (now_seconds() - begin_s);
}

void TrainingLoop::record(std::optional<Validation> found) {
  if (!found) return;
  state_.last->validation = std::move(found);
  state_.last_evaluated = state_.last;
}

void TrainingLoop::check_skipped() {
  if (!state_.last->skipped) return;
  const char* which = std::isfinite(state_.last->loss) ? "gradient norm" : "loss";
  const std::string what = fmt::format("step {}: the {} is not finite", state_.step, which);
  if (output_)
    output_->warn(fmt::format("{}: skipped, {} in a row", what, state_.skipped_in_a_row));
  if (state_.skipped_in_a_row < config().train.max_skipped_steps) return;
  throw std::runtime_error(
      fmt::format("{} for {} steps in a row (train.max_skipped_steps); lower optimizer.lr or "
                  "lengthen schedule.warmup_steps. Checkpoints hold finite weights only; {}",
                  what, state_.skipped_in_a_row,
                  saved_step_ < 0 ? "none was saved by this process"
                                  : fmt::format("the last one is step {}", saved_step_)));
}

plan::PlannedStep::Options TrainingLoop::memory_options(
    std::shared_ptr<plan::PagedAllocations> paged) const {
  plan::PlannedStep::Options options = planned_step_options(config().memory, run_.device);
  options.paged = std::move(paged);
  if (shares_.automatic()) options.other_sizes = plan::PlannedStep::OtherSizes::kPlanAnew;
  return options;
}

io::TensorOwners TrainingLoop::owners_of(std::vector<io::CheckpointTensor> tensors) const {
  return {std::move(tensors), group_->size(), config().checkpoint.writers};
}

std::map<std::string, at::Tensor> TrainingLoop::own_part(
    const std::map<std::string, at::Tensor>& tensors) const {
  return owners_of(io::held_by_all(tensors)).owned_by(group_->rank(), tensors);
}

void TrainingLoop::save_if_due(bool stopping, StepTimings& timings) {
  const int64_t every = config().checkpoint.every_steps;
  const bool due =
      every != 0 && (stopping || complete() || (every > 0 && state_.step % every == 0));
  if (!due) return;
  const double begin_s = now_seconds();
  const auto kind = saves_++ % config().checkpoint.full_every == 0 ? io::CheckpointKind::kFull
                                                                   : io::CheckpointKind::kDelta;
  // The checkpoint relies on these lines. They must be on the disk before it gets its final name.
  comm::on_rank_zero(*group_, "saving a checkpoint", [&] { output_->sync(); });
  io::StreamedTensors& streamed = checkpoints_->begin(state_.step, kind);
  const bool is_first = group_->rank() == 0;
  const bool writes = is_first || config().checkpoint.writers == "all";
  stream_tensors(kind, writes ? &streamed : nullptr);
  checkpoints_->save({.step = state_.step,
                      .tensors = checkpoint_tensors(),
                      .state = is_first ? checkpoint_state() : nlohmann::json()});
  saved_step_ = state_.step;
  timings.checkpoint_ms = 1e3 * (now_seconds() - begin_s);
}

}  // namespace dovetail::train
