#include "dovetail/train/step.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/adamw.h"
#include "dovetail/train/collective.h"

namespace dovetail {
namespace {

/// Squares of this rank's share of the gradients that several ranks hold: over all ranks they are the global norm.
double squares_of_share(const GradientReducer& gradients) {
  std::vector<at::Tensor> share;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Group& holders = gradients.group(i);
    if (i % static_cast<size_t>(holders.size()) == static_cast<size_t>(holders.rank()))
      share.push_back(gradients.gradient(i));
  }
  return sum_of_squares(share);
}

}  // namespace

TrainStep::TrainStep(std::shared_ptr<GPT> model, Optimizer& optimizer, std::shared_ptr<Group> group,
                     StepOptions options)
    : model_(std::move(model)),
      optimizer_(optimizer),
      group_(std::move(group)),
      options_(options),
      reducer_(group_, optimizer_.parameters(),
               {.bucket_bytes = options.bucket_bytes, .groups = options.gradient_groups}) {
  DOVETAIL_CHECK(options_.micro_batch > 0, "micro_batch {}", options_.micro_batch);
}

StepOutcome TrainStep::run(const at::Tensor& tokens, double lr, bool want_stop, const StepPlace& place) {
  const int64_t samples = tokens.size(0);
  DOVETAIL_CHECK(samples > 0, "a rank without samples");
  at::Tensor loss_sum, router_sum;
  const auto add = [](at::Tensor& to, const at::Tensor& part) {
    const at::Tensor detached = part.detach().to(at::kDouble);
    to = to.defined() ? to + detached : detached;
  };
  moe::Pass pass = {.training = true, .seed = place.seed};
  if (group_->size() > 1) pass.sum_over_ranks = [this](at::Tensor& sums) { group_->all_reduce(sums); };
  int64_t weight = 0;
  const int64_t passes_over = model_->expert_ranks() ? std::max(samples, place.most_samples) : samples;
  reducer_.begin();
  for (int64_t first = 0; first < passes_over; first += options_.micro_batch) {
    const int64_t size = std::clamp(samples - first, int64_t{0}, options_.micro_batch);
    LossSum loss;
    {
      const TraceSpan span("forward");
      pass.first_token = (place.first_sample + first) * (tokens.size(1) - 1);
      pass.most_tokens = std::min(place.most_samples - first, options_.micro_batch) * (tokens.size(1) - 1);
      loss = model_->loss(tokens.narrow(0, std::min(first, samples), size), pass);
    }
    if (first + options_.micro_batch >= passes_over) reducer_.arm();
    const TraceSpan span("backward");
    loss.trained().backward();
    add(loss_sum, loss.sum);
    if (loss.router.defined()) add(router_sum, loss.router);
    weight += loss.weight;
  }
  reducer_.finish();

  const TraceSpan span("update");
  const std::vector<double> sums =
      sum_over_ranks(*group_, {loss_sum.item<double>(), static_cast<double>(weight), squares_of_share(reducer_),
                               want_stop ? 1.0 : 0.0, router_sum.defined() ? router_sum.item<double>() : 0.0});
  StepOutcome outcome = {.loss = sums[0] / sums[1],
                         .grad_norm = std::sqrt(sums[2]) / sums[1],
                         .tokens = static_cast<int64_t>(sums[1]),
                         .stop = sums[3] > 0};
  if (router_sum.defined()) outcome.router_loss = sums[4] / sums[1];
  outcome.skipped = !std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm);
  if (!outcome.skipped) {
    const bool clipped = options_.clip > 0 && outcome.grad_norm > options_.clip;
    optimizer_.step(reducer_, lr, (clipped ? options_.clip / outcome.grad_norm : 1.0) / sums[1]);
  }
  return outcome;
}

}  // namespace dovetail
