#include "dovetail/train/vision/step.h"

#include <ATen/Context.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"
#include "dovetail/train/optimizer/gradient_clipping.h"

namespace dovetail::train {

VisionStep::VisionStep(std::shared_ptr<models::VisionModel> model, Optimizer& optimizer,
                       std::shared_ptr<comm::Group> group, Options options)
    : model_(std::move(model)),
      optimizer_(optimizer),
      group_(std::move(group)),
      options_(options),
      reducer_(group_, optimizer_.parameters(), {.bucket_bytes = options_.bucket_bytes}),
      outcome_marker_(at::zeros({1}, optimizer_.parameters().front().options())) {
  DOVETAIL_CHECK(options_.micro_batch > 0, "micro_batch {}", options_.micro_batch);
}

void VisionStep::plan_memory(plan::PlannedStep::Options options) {
  options.replay = true;  // operations read `now_` in each replay
  plan::StepTensors tensors = tensors_of_step(*model_, optimizer_, outcome_marker_);
  for (const auto& item : model_->named_buffers())
    tensors.state.emplace_back(item.key(), item.value());
  planned_.emplace(
      [this](const std::vector<at::Tensor>& inputs) { work(inputs.at(0), inputs.at(1)); },
      [tensors = std::move(tensors)] { return tensors; }, std::move(options));
}

StepOutcome VisionStep::run(const data::ImageBatch& batch, double lr, bool want_stop,
                            uint64_t seed) {
  DOVETAIL_CHECK(batch.images.size(0) > 0, "a rank without samples");
  now_ = {.lr = lr,
          .want_stop = want_stop,
          .samples = batch.images.size(0),
          .targets = batch.targets.numel()};
  const c10::Device device = optimizer_.parameters().front().device();
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(seed);
  const at::Tensor images = batch.images.to(device), targets = batch.targets.to(device);
  if (planned_) {
    planned_->run({{"images", images}, {"targets", targets}}, {});
  } else {
    work(images, targets);
  }
  return now_.outcome;
}

void VisionStep::work(const at::Tensor& images, const at::Tensor& targets) {
  const at::Tensor loss = add_gradients(images, targets);
  const TraceSpan span("update");
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < reducer_.size(); ++i) gradients.push_back(reducer_.gradient(i));
  judge(outcome_marker_, squares_of(gradients), {loss},
        [this](double squares, std::span<const at::Tensor> found) {
          now_.outcome = agree_on_outcome(found[0].item<double>(), squares);
        });
  optimizer_.update(reducer_);
}

at::Tensor VisionStep::add_gradients(const at::Tensor& images, const at::Tensor& targets) {
  const int64_t samples = images.size(0);
  at::Tensor sum;
  reducer_.begin();
  for (int64_t first = 0; first < samples; first += options_.micro_batch) {
    const int64_t size = std::min(options_.micro_batch, samples - first);
    now_.clock.start();
    models::LossSum loss;
    {
      const TraceSpan span("forward");
      loss = model_->loss(images.narrow(0, first, size), targets.narrow(0, first, size));
    }
    if (first + size >= samples) reducer_.arm();
    const TraceSpan span("backward");
    loss.sum.backward();
    const at::Tensor part = loss.sum.detach().to(at::kDouble);
    sum = sum.defined() ? sum + part : part;
    if (loss.sum.is_cpu()) now_.clock.stop();
  }
  reducer_.finish();
  return sum;
}

StepOutcome VisionStep::agree_on_outcome(double loss_sum, double squares) const {
  const std::vector<double> sums =
      sum_over_ranks(*group_, {loss_sum, static_cast<double>(now_.targets),
                               static_cast<double>(now_.samples), now_.want_stop ? 1.0 : 0.0});
  StepOutcome outcome = {.loss = sums[0] / sums[1],
                         .grad_norm = std::sqrt(squares) / sums[1],
                         .tokens = static_cast<int64_t>(sums[2]),
                         .stop = sums[3] > 0};
  prepare_update(outcome, {.weight = sums[1], .max_norm = options_.clip, .lr = now_.lr},
                 optimizer_);
  return outcome;
}

}  // namespace dovetail::train
