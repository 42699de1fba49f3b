#include "dovetail/train/gpt/step.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"
#include "dovetail/train/optimizer/gradient_clipping.h"

namespace dovetail::train {

TrainStep::TrainStep(std::shared_ptr<models::GPT> model, Optimizer& optimizer,
                     std::shared_ptr<comm::Group> group, StepOptions options)
    : model_(std::move(model)),
      optimizer_(optimizer),
      group_(std::move(group)),
      options_(std::move(options)),
      reducer_(group_, optimizer_.parameters(),
               {.bucket_bytes = options_.bucket_bytes,
                .groups = options_.gradient_groups,
                .scatter = options_.scatter_gradients}),
      outcome_marker_(at::zeros({1}, optimizer_.parameters().front().options())) {
  DOVETAIL_CHECK(options_.micro_batch > 0, "micro_batch {}", options_.micro_batch);
}

void TrainStep::plan_memory(plan::PlannedStep::Options options) {
  options.replay = true;  // operations read `now_` in each replay
  plan::StepTensors tensors = tensors_of_step(*model_, optimizer_, outcome_marker_);
  planned_.emplace([this](const std::vector<at::Tensor>& inputs) { work(inputs.front()); },
                   [tensors = std::move(tensors)] { return tensors; }, std::move(options));
}

StepOutcome TrainStep::run(const at::Tensor& tokens, double lr, bool want_stop,
                           const StepPlace& place) {
  DOVETAIL_CHECK(tokens.size(0) > 0, "a rank without samples");
  now_ = {
      .lr = lr, .want_stop = want_stop, .place = place, .weight = models::count_targets(tokens)};
  if (planned_) {
    planned_->run({{"tokens", tokens}}, {{"first sample", place.first_sample},
                                         {"most samples of a rank", place.maximum_samples}});
  } else {
    work(tokens);
  }
  return now_.outcome;
}

void TrainStep::work(const at::Tensor& tokens) {
  const auto [losses, squares] =
      shared() ? make_shared_gradients(tokens) : make_gradients_by_graph(tokens);
  const TraceSpan span("update");
  judge(outcome_marker_, squares, {losses.sum, losses.router},
        [this](double squares, std::span<const at::Tensor> found) {
          const at::Tensor &loss = found[0], &router = found[1];
          now_.outcome = agree_on_outcome(
              loss.item<double>(),
              router.defined() ? std::optional(router.item<double>()) : std::nullopt, squares);
        });
  optimizer_.update(reducer_);
}

TrainStep::Gradients TrainStep::make_gradients(const at::Tensor& tokens) {
  const Losses losses = add_gradients(tokens);
  return {losses, squares_of_share()};
}

TrainStep::Gradients TrainStep::make_shared_gradients(const at::Tensor& tokens) {
  const at::Tensor own =
      options_.sharing->start(tokens, optimizer_.updates(), first_pass(tokens.size(1) - 1));
  Losses losses = add_gradients(own);
  options_.sharing->add_to(reducer_, losses.sum, losses.router);
  return {losses, squares_of_share()};
}

TrainStep::Gradients TrainStep::make_gradients_by_graph(const at::Tensor& tokens) {
  const bool wanted = options_.cuda_graph && graph_failure_.empty() && now_.place.graphed;
  if (wanted && !recorded_ && --steps_before_graph_ < 0) record_graph(tokens);
  if (!wanted || !recorded_ || tokens.sizes() != recorded_->tokens.sizes())
    return make_gradients(tokens);
  // Pinned memory: a copy from other memory waits for all earlier work.
  recorded_->tokens.copy_(tokens.pin_memory(), /*non_blocking=*/true);
  reducer_.replace(recorded_->gradients);
  recorded_->graph->replay();
  return recorded_->made;
}

void TrainStep::record_graph(const at::Tensor& tokens) {
  Recorded recorded;
  reducer_.begin();  // frees the previous step's gradients, which a recording could not do
  try {
    recorded.tokens = tokens.to(optimizer_.parameters().front().device());
    recorded.graph =
        std::make_unique<ops::GpuGraph>([&] { recorded.made = make_gradients(recorded.tokens); });
  } catch (const c10::Error& error) {
    graph_failure_ = error.what_without_backtrace();
    return;
  }
  for (size_t i = 0; i < reducer_.size(); ++i) recorded.gradients.push_back(reducer_.gradient(i));
  recorded_ = std::move(recorded);
}

moe::Pass TrainStep::first_pass(int64_t tokens_of_a_sample) const {
  return {.training = true,
          .seed = moe::StepSeed::at(&now_.place.seed),
          .first_token = now_.place.first_sample * tokens_of_a_sample};
}

TrainStep::Losses TrainStep::add_gradients(const at::Tensor& tokens) {
  const int64_t samples = tokens.size(0);
  const StepPlace& place = now_.place;
  Losses losses;
  const auto add = [](at::Tensor& to, const at::Tensor& part) {
    const at::Tensor detached = part.detach().to(at::kDouble);
    to = to.defined() ? to + detached : detached;
  };
  moe::Pass pass = first_pass(tokens.size(1) - 1);
  if (group_->size() > 1)
    pass.sum_over_ranks = [this](at::Tensor& sums) { group_->all_reduce(sums); };
  // If ranks exchange data in every forward pass, all make the same number of passes, some of them
  // empty.
  const moe::Config& moe = model_->config().moe;
  const bool meet = model_->expert_ranks() || reducer_.scatters() ||
                    (group_->size() > 1 && moe.experts > 0 && moe.load_scope == "global_batch");
  const int64_t passes_over = meet ? std::max(samples, place.maximum_samples) : samples;
  reducer_.begin();
  for (int64_t first = 0; first < passes_over; first += options_.micro_batch) {
    const int64_t size = std::clamp(samples - first, int64_t{0}, options_.micro_batch);
    now_.clock.start();
    models::LossSum loss;
    {
      const TraceSpan span("forward");
      pass.first_token = (place.first_sample + first) * (tokens.size(1) - 1);
      pass.maximum_tokens =
          std::min(place.maximum_samples - first, options_.micro_batch) * (tokens.size(1) - 1);
      loss = model_->loss(tokens.narrow(0, std::min(first, samples), size), pass);
    }
    // Sums that executors add to are complete only after their last micro-batch.
    const bool reduced =
        !shared() && (reducer_.scatters() || first + options_.micro_batch >= passes_over);
    if (reduced) reducer_.arm();
    const TraceSpan span("backward");
    loss.trained().backward();
    add(losses.sum, loss.sum);
    if (loss.router.defined()) add(losses.router, loss.router);
    if (loss.sum.is_cpu()) now_.clock.stop();
    if (reduced) reducer_.finish();
  }
  return losses;
}

/// Returns squares of this rank's share of the gradients that several ranks hold. Their sum over
/// all ranks is the square of the global norm.
std::vector<at::Tensor> TrainStep::squares_of_share() const {
  std::vector<at::Tensor> share;
  if (reducer_.scatters()) {
    for (size_t b = 0; b < reducer_.buckets().size(); ++b) share.push_back(reducer_.share(b));
    return squares_of(share);
  }
  // All holders of a parameter count it alike within their group. The index `i` would not do: a
  // rank with more experts has other indices after them.
  std::map<const comm::Group*, int> count;
  for (size_t i = 0; i < reducer_.size(); ++i) {
    const comm::Group& holders = reducer_.group(i);
    if (count[&holders]++ % holders.size() == holders.rank()) share.push_back(reducer_.gradient(i));
  }
  return squares_of(share);
}

StepOutcome TrainStep::agree_on_outcome(double loss_sum, std::optional<double> router_sum,
                                        double squares) const {
  const std::vector<double> sums =
      sum_over_ranks(*group_, {loss_sum, static_cast<double>(now_.weight), squares,
                               now_.want_stop ? 1.0 : 0.0, router_sum.value_or(0.0)});
  StepOutcome outcome = {.loss = sums[0] / sums[1],
                         .grad_norm = std::sqrt(sums[2]) / sums[1],
                         .tokens = static_cast<int64_t>(sums[1]),
                         .stop = sums[3] > 0};
  if (router_sum) outcome.router_loss = sums[4] / sums[1];
  prepare_update(outcome, {.weight = sums[1], .max_norm = options_.clip, .lr = now_.lr},
                 optimizer_);
  return outcome;
}

}  // namespace dovetail::train
