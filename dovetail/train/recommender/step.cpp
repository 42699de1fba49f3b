#include "dovetail/train/recommender/step.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"
#include "dovetail/train/optimizer/gradient_clipping.h"
#include "dovetail/train/recommender/loss.h"

namespace dovetail::train {
namespace {

/// Inputs of a step, in this order. The masks are present only if the model reads them.
enum Input : size_t { kDense, kLabels, kScales, kEvents, kNegatives };

at::Tensor samples_of(const std::vector<at::Tensor>& inputs, Input which, int64_t first,
                      int64_t count) {
  return which < inputs.size() ? inputs[which].narrow(0, first, count) : at::Tensor();
}

}  // namespace

RecommenderStep::RecommenderStep(std::shared_ptr<models::Recommender> model,
                                 const RecommenderLookups& lookups, Optimizer& optimizer,
                                 std::shared_ptr<comm::Group> group, Options options)
    : model_(std::move(model)),
      lookups_(lookups),
      optimizer_(optimizer),
      group_(std::move(group)),
      options_(std::move(options)),
      reducer_(group_, optimizer_.parameters(), {.bucket_bytes = options_.bucket_bytes}),
      outcome_marker_(at::zeros({1})) {}

void RecommenderStep::plan_memory(plan::PlannedStep::Options options) {
  options.replay = true;  // operations read `now_` in each replay
  plan::StepTensors tensors = tensors_of_step(*model_, optimizer_, outcome_marker_);
  planned_.emplace([this](const std::vector<at::Tensor>& inputs) { work(inputs); },
                   [tensors = std::move(tensors)] { return tensors; }, std::move(options));
}

plan::PlannedStep::Inputs RecommenderStep::inputs_of(const StepRows& rows) {
  const at::Device device = optimizer_.parameters().front().device();
  plan::PlannedStep::Inputs inputs = {
      {"dense features", rows.batch.dense},
      {"labels", rows.batch.labels},
      {"scales", task_scales(rows.batch.labels, options_.task_weights, *group_)}};
  if (const at::Tensor events = lookups_.mask(rows.ids); events.defined())
    inputs.emplace_back("events", events);
  if (const at::Tensor negatives = lookups_.negative_mask(rows.ids); negatives.defined())
    inputs.emplace_back("negatives", negatives);
  for (auto& [name, tensor] : inputs) tensor = embedding::on(tensor, device);
  return inputs;
}

StepOutcome RecommenderStep::run(StepRows& rows, embedding::DistributedTables& tables,
                                 const StartNext& start_next, double lr, bool want_stop) {
  now_ = {.rows = &rows,
          .tables = &tables,
          .start_next = &start_next,
          .lr = lr,
          .want_stop = want_stop};
  const plan::PlannedStep::Inputs inputs = inputs_of(rows);
  if (planned_) {
    planned_->run(inputs, {{"micro-batches", rows.tables.micro_batches()}});
  } else {
    std::vector<at::Tensor> given;
    for (const auto& [name, tensor] : inputs) given.push_back(tensor);
    work(given);
  }
  return now_.outcome;
}

void RecommenderStep::pass(StepRows& rows, embedding::DistributedTables& tables,
                           const StartNext& start_next) {
  now_ = {.rows = &rows, .tables = &tables, .start_next = &start_next};
  std::vector<at::Tensor> given;
  for (const auto& [name, tensor] : inputs_of(rows)) given.push_back(tensor);
  add_gradients(given);
}

void RecommenderStep::work(const std::vector<at::Tensor>& inputs) {
  const Losses losses = add_gradients(inputs);
  const TraceSpan span("update");
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < reducer_.size(); ++i) gradients.push_back(reducer_.gradient(i));
  judge(outcome_marker_, squares_of(gradients), {losses.sum, losses.auxiliary},
        [this](double squares, std::span<const at::Tensor> found) {
          const auto value = [](const at::Tensor& sum) {
            return sum.defined() ? sum.item<double>() : 0.0;
          };
          now_.outcome = agree_on_outcome(value(found[0]), value(found[1]), squares);
        });
  optimizer_.update(reducer_);
}

RecommenderStep::Losses RecommenderStep::add_gradients(const std::vector<at::Tensor>& inputs) {
  const int64_t parts = now_.rows->tables.micro_batches(), samples = inputs[kDense].size(0);
  Losses losses;
  reducer_.begin();
  for (int64_t m = 0; m < parts; ++m) {
    const at::Tensor pooled = look_up(m);
    if (parts == 1 && runs_as_graph(inputs, pooled)) {
      losses = replay_graph(inputs, pooled);
      send_gradient(m);
      return losses;
    }
    const int64_t first = std::min(m * now_.rows->micro_batch, samples);
    if (first < samples) now_.clock.start();
    run_dense(inputs, first, pooled, m + 1 == parts, losses);
    if (first < samples) now_.clock.stop();
    send_gradient(m);
  }
  reducer_.finish();
  return losses;
}

/// Returns the pooled rows of a micro-batch, (samples, columns). Under a memory plan they are
/// copied to the plan's place for them, because tables allocate their own memory.
at::Tensor RecommenderStep::look_up(int64_t micro_batch) {
  return operation_once("dovetail::lookup", {}, [this, micro_batch](const Operands&) {
    embedding::DistributedTables& tables = *now_.tables;
    embedding::TableStep& step = now_.rows->tables;
    at::Tensor pooled;
    {
      const UnrecordedAllocations of_the_tables;
      if (micro_batch == 0) {
        tables.begin(step);
        tables.gather(step, 0);
        now_.next = (*now_.start_next)();
      }
      pooled = tables.wait(step, micro_batch);
      if (micro_batch + 1 < step.micro_batches()) tables.gather(step, micro_batch + 1);
      now_.gradient = embedding::allocate(pooled.numel(), pooled.device()).view(pooled.sizes());
    }
    return std::vector{planned_ ? pooled.clone() : pooled};
  })[0];
}

void RecommenderStep::run_dense(const std::vector<at::Tensor>& inputs, int64_t first,
                                const at::Tensor& pooled, bool last, Losses& losses) {
  const int64_t samples = pooled.size(0);
  const auto add = [](at::Tensor& to, const at::Tensor& part) {
    const at::Tensor detached = part.detach().to(at::kDouble);
    to = to.defined() ? to + detached : detached;
  };
  if (last && samples == 0) reducer_.arm();
  for (int64_t begin = 0; begin < samples; begin += options_.grain) {
    const int64_t at = first + begin, count = std::min(options_.grain, samples - begin);
    const at::Tensor embedded = pooled.narrow(0, begin, count).detach().requires_grad_();
    at::Tensor sum;
    {
      const TraceSpan span("forward");
      const models::RecommenderOutput found =
          model_->forward({.dense = samples_of(inputs, kDense, at, count),
                           .embedded = embedded,
                           .mask = samples_of(inputs, kEvents, at, count),
                           .negative_mask = samples_of(inputs, kNegatives, at, count)});
      sum = loss_sum(found.logits, samples_of(inputs, kLabels, at, count), inputs[kScales]);
      add(losses.sum, sum);
      if (found.auxiliary.defined()) {
        add(losses.auxiliary, found.auxiliary);
        sum = sum + found.auxiliary;
      }
    }
    if (last && begin + options_.grain >= samples) reducer_.arm();
    const TraceSpan span("backward");
    sum.backward();
    operation_once("dovetail::table_gradient", {.reads = {embedded.grad()}},
                   [this, begin, count](const Operands& inputs) {
                     const UnrecordedAllocations of_the_tables;
                     at::Tensor to = now_.gradient.narrow(0, begin, count);
                     at::div_out(
                         to, inputs.reads[0],
                         at::native::wrapped_scalar_tensor(static_cast<double>(now_.rows->rows)));
                     return std::vector<at::Tensor>();
                   });
  }
}

bool RecommenderStep::runs_as_graph(const std::vector<at::Tensor>& inputs,
                                    const at::Tensor& pooled) {
  if (!options_.record || planned_ || !graph_failure_.empty()) return false;
  if (!recorded_ && --steps_before_graph_ < 0) record_graph(inputs, pooled);
  return recorded_ && recorded_->rows == now_.rows->rows &&
         pooled.sizes() == recorded_->pooled.sizes() &&
         std::ranges::equal(inputs, recorded_->inputs, {}, &at::Tensor::sizes, &at::Tensor::sizes);
}

void RecommenderStep::record_graph(const std::vector<at::Tensor>& inputs,
                                   const at::Tensor& pooled) {
  recorded_.emplace(Recorded{.inputs = {},
                             .pooled = pooled.clone(),
                             .rows = now_.rows->rows,
                             .gradient = at::empty_like(pooled),
                             .losses = {},
                             .gradients = {},
                             .replay = {}});
  for (const at::Tensor& input : inputs) recorded_->inputs.push_back(input.clone());
  try {
    recorded_->replay = options_.record([this] { work_of_graph(); });
  } catch (const c10::Error& error) {
    graph_failure_ = error.what_without_backtrace();
    recorded_.reset();
    reducer_.begin();
  }
}

void RecommenderStep::work_of_graph() {
  reducer_.begin();
  now_.gradient = recorded_->gradient;
  recorded_->losses = {};
  run_dense(recorded_->inputs, 0, recorded_->pooled, /*last=*/true, recorded_->losses);
  reducer_.finish();
  recorded_->gradients.clear();
  for (size_t i = 0; i < reducer_.size(); ++i) recorded_->gradients.push_back(reducer_.gradient(i));
}

RecommenderStep::Losses RecommenderStep::replay_graph(const std::vector<at::Tensor>& inputs,
                                                      const at::Tensor& pooled) {
  recorded_->pooled.copy_(pooled);
  for (size_t i = 0; i < inputs.size(); ++i) recorded_->inputs[i].copy_(inputs[i]);
  recorded_->replay();
  reducer_.replace(recorded_->gradients);
  now_.gradient = recorded_->gradient;
  return recorded_->losses;
}

void RecommenderStep::send_gradient(int64_t micro_batch) {
  operation_once("dovetail::send_gradient", {}, [this, micro_batch](const Operands&) {
    const UnrecordedAllocations of_the_tables;
    now_.tables->add_gradient(now_.rows->tables, micro_batch, std::exchange(now_.gradient, {}));
    if (micro_batch == 0 && now_.next != nullptr) now_.tables->prefetch(*now_.next);
    return std::vector<at::Tensor>();
  });
}

StepOutcome RecommenderStep::agree_on_outcome(double loss_sum, double auxiliary_sum,
                                              double squares) const {
  const auto weight = static_cast<double>(now_.rows->rows);
  const std::vector<double> sums =
      sum_over_ranks(*group_, {loss_sum, now_.want_stop ? 1.0 : 0.0, auxiliary_sum});
  StepOutcome outcome = {.loss = sums[0] / weight,
                         .grad_norm = std::sqrt(squares) / weight,
                         .tokens = now_.rows->rows,
                         .stop = sums[1] > 0};
  if (models::has_negatives(model_->config())) outcome.auxiliary_loss = sums[2] / weight;
  prepare_update(outcome, {.weight = weight, .max_norm = options_.clip, .lr = now_.lr}, optimizer_);
  return outcome;
}

}  // namespace dovetail::train
