#include "dovetail/train/gpt/step_sharing.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"

namespace dovetail::train {

StepSharing::StepSharing(std::vector<std::unique_ptr<StepExecutor>> others,
                         std::vector<int64_t> shares, int64_t micro_batch, c10::Device owner,
                         moe::Layers layers)
    : others_(std::move(others)),
      micro_batch_(micro_batch),
      owner_(owner),
      layers_(std::move(layers)) {
  set_shares(std::move(shares));
}

void StepSharing::set_shares(std::vector<int64_t> shares) {
  DOVETAIL_CHECK(shares.size() == others_.size() + 1 && shares.front() > 0,
                 "{} shares of {} executors", shares.size(), others_.size() + 1);
  for (size_t e = 0; e < others_.size(); ++e) {
    DOVETAIL_CHECK(shares[e + 1] == 0 || others_[e] != nullptr, "executor {} was left out", e + 1);
    if (shares[e + 1] == 0) others_[e].reset();
  }
  shares_ = std::move(shares);
}

bool StepSharing::shared() const {
  return std::ranges::any_of(others_, [](const auto& other) { return other != nullptr; });
}

StepSharing::Moment StepSharing::now() const {
  Moment moment{.host_s = now_seconds(), .event = {}};
  if (owner_.is_cuda()) {
    moment.event.emplace(owner_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with timing
    moment.event->record(c10::impl::VirtualGuardImpl(owner_.type()).getStream(owner_));
  }
  return moment;
}

double StepSharing::seconds(const Moment& from, const Moment& to) {
  return from.event ? 1e-3 * from.event->elapsedTime(*to.event) : to.host_s - from.host_s;
}

std::optional<c10::Event> StepSharing::weights_ready() const {
  if (!owner_.is_cuda()) return std::nullopt;
  std::optional<c10::Event> event(owner_.type());
  event->record(c10::impl::VirtualGuardImpl(owner_.type()).getStream(owner_));
  return event;
}

at::Tensor StepSharing::start(const at::Tensor& tokens, int64_t updates, const moe::Pass& pass) {
  const bool copy_weights = copied_updates_ != updates;
  int64_t first = shares_.front() * micro_batch_;
  for (size_t e = 0; e < others_.size(); ++e) {
    if (others_[e] == nullptr) continue;
    const int64_t size = shares_[e + 1] * micro_batch_;
    moe::Pass own = pass;
    own.first_token += first * (tokens.size(1) - 1);
    others_[e]->start({.tokens = tokens.narrow(0, first, size),
                       .pass = own,
                       .copy_weights = copy_weights,
                       .weights_ready = weights_ready()});
    first += size;
  }
  DOVETAIL_CHECK(first == tokens.size(0), "shares of {} samples for {}", first, tokens.size(0));
  copied_updates_ = updates;
  begin_ = now();
  return tokens.narrow(0, 0, shares_.front() * micro_batch_);
}

void StepSharing::add_to(comm::GradientReducer& gradients, at::Tensor& loss, at::Tensor& router) {
  end_ = now();
  added_.clear();
  of_others_.clear();
  for (const auto& other : others_) {
    of_others_.emplace_back();
    if (other == nullptr) {
      added_.emplace_back();
      continue;
    }
    const StepExecutor::Result* result = nullptr;
    {
      const TraceSpan span("wait for an executor");
      result = &other->wait();
    }
    const TraceSpan span("add gradients");
    Moment begin = now();
    for (const StepExecutor::MicroBatch& micro_batch : result->micro_batches) {
      for (size_t i = 0; i < gradients.size(); ++i) {
        const at::Tensor& gradient = micro_batch.gradients[i];
        if (gradient.defined()) gradients.add(i, gradient.to(owner_, /*non_blocking=*/true));
      }
      loss = loss + micro_batch.loss;  // a scalar on the CPU: no copy, no wait
      if (micro_batch.router.defined()) router = router + micro_batch.router;
    }
    for (size_t i = 0; i < layers_.size(); ++i) layers_[i].second->add_load(result->loads[i]);
    added_.emplace_back(std::move(begin), now());
    of_others_.back() = {.start_s = result->copy_s, .compute_s = result->compute_s};
  }
}

std::vector<jobs::ExecutorShares::Times> StepSharing::times() const {
  std::vector<jobs::ExecutorShares::Times> times = {{.compute_s = seconds(*begin_, *end_)}};
  for (size_t e = 0; e < others_.size(); ++e) {
    times.push_back(of_others_[e]);
    if (others_[e] != nullptr) times.back().add_s = seconds(added_[e].first, added_[e].second);
  }
  return times;
}

}  // namespace dovetail::train
