#include "dovetail/comm/reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"

namespace dovetail {
namespace {

at::ScalarType sum_dtype(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Runs after a parameter's gradient has been accumulated, on the thread of its backward.
class AccumulatedHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit AccumulatedHook(std::function<void()> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

}  // namespace

struct GradientReducer::State {
  struct Parameter {
    at::Tensor tensor;
    std::shared_ptr<Group> group;
    at::Tensor sum;  // a view into its bucket; undefined where .grad() serves
    size_t bucket = 0;
    bool summed = false;                                 // `sum` holds something of this step
    bool arrived = false;                                // in the armed backward
    std::shared_ptr<torch::autograd::Node> accumulator;  // kept: autograd itself holds it weakly
    uintptr_t hook = 0;

    bool alone() const { return group->size() == 1; }
  };
  struct Bucket {
    std::shared_ptr<Group> group;
    at::Tensor flat;
    std::vector<size_t> parameters;
    size_t missing = 0;  // gradients of the armed backward that have not arrived
  };

  std::vector<Parameter> parameters;
  std::vector<Bucket> buckets;
  std::vector<std::unique_ptr<Group::Work>> running;
  size_t started = 0;  // buckets [0, started) of this step
  bool armed = false;
  double exposed_s = 0;

  void add_parameter(const at::Tensor& tensor, std::shared_ptr<Group> group, size_t i);
  void make_buckets(int64_t bucket_bytes);
  void arrived(size_t i);
  void add_to_sum(Parameter& p);
  void start_ready_buckets();
};

void GradientReducer::State::add_parameter(const at::Tensor& tensor, std::shared_ptr<Group> group, size_t i) {
  DOVETAIL_CHECK(tensor.defined() && tensor.is_leaf() && tensor.requires_grad() && tensor.is_floating_point() &&
                     tensor.is_contiguous(),
                 "parameter {} is not a contiguous floating point leaf that requires grad", i);
  auto& p = parameters.emplace_back();
  p.tensor = tensor;
  p.group = std::move(group);
  p.accumulator = torch::autograd::impl::grad_accumulator(tensor);
  p.hook = p.accumulator->add_post_hook(std::make_unique<AccumulatedHook>([this, i] { arrived(i); }));
}

/// Backward reaches the last parameters first, so buckets are filled from the end of the list: for each kind one at a
/// time, in the order in which they are full.
void GradientReducer::State::make_buckets(int64_t bucket_bytes) {
  struct Open {
    Bucket bucket;
    int64_t used = 0;
  };
  std::vector<Open> open;
  for (size_t i = parameters.size(); i-- > 0;) {
    const Parameter& p = parameters[i];
    if (p.alone()) continue;
    const auto bytes = p.tensor.numel() * static_cast<int64_t>(c10::elementSize(sum_dtype(p.tensor.scalar_type())));
    const auto same_kind = [&](const Open& other) {
      const at::Tensor& first = parameters[other.bucket.parameters.front()].tensor;
      return other.bucket.group == p.group && first.device() == p.tensor.device() &&
             sum_dtype(first.scalar_type()) == sum_dtype(p.tensor.scalar_type());
    };
    auto found = std::ranges::find_if(open, same_kind);
    if (found == open.end()) {
      found = open.insert(found, Open{.bucket = {.group = p.group}});
    } else if (found->used + bytes > bucket_bytes) {
      buckets.push_back(std::exchange(found->bucket, {.group = p.group}));
      found->used = 0;
    }
    found->used += bytes;
    found->bucket.parameters.push_back(i);
  }
  for (Open& last : open) buckets.push_back(std::move(last.bucket));
  for (size_t b = 0; b < buckets.size(); ++b)
    for (const size_t i : buckets[b].parameters) parameters[i].bucket = b;
  for (auto& bucket : buckets) {
    int64_t elements = 0;
    for (const size_t i : bucket.parameters) elements += parameters[i].tensor.numel();
    const auto& first = parameters[bucket.parameters.front()].tensor;
    bucket.flat = at::empty({elements}, first.options().dtype(sum_dtype(first.scalar_type())).requires_grad(false));
    int64_t offset = 0;
    for (const size_t i : bucket.parameters) {
      auto& p = parameters[i];
      p.sum = bucket.flat.narrow(0, offset, p.tensor.numel()).view(p.tensor.sizes());
      offset += p.tensor.numel();
    }
  }
}

/// Moves `.grad()` into the sum. The first gradient of a step overwrites, which spares clearing the buckets.
void GradientReducer::State::add_to_sum(Parameter& p) {
  const at::NoGradGuard no_grad;
  auto& grad = p.tensor.mutable_grad();
  if (!p.sum.defined())
    p.sum =
        at::empty(p.tensor.sizes(), p.tensor.options().dtype(sum_dtype(p.tensor.scalar_type())).requires_grad(false));
  if (p.summed)
    p.sum.add_(grad);
  else
    p.sum.copy_(grad);
  p.summed = true;
  grad.reset();
}

void GradientReducer::State::arrived(size_t i) {
  auto& p = parameters[i];
  if (!p.tensor.grad().defined()) return;  // its function gave no gradient
  if (p.alone()) {
    // In one rank `.grad()` is the sum, unless adding micro-batches up in 16 bits would lose some of it.
    const bool narrow = p.tensor.scalar_type() != sum_dtype(p.tensor.scalar_type());
    if (narrow && (p.summed || !armed)) add_to_sum(p);
    return;
  }
  DOVETAIL_CHECK(!(armed && p.arrived),
                 "parameter {} got a second gradient in the armed backward, after its bucket may have been sent", i);
  add_to_sum(p);
  if (!armed) return;
  p.arrived = true;
  --buckets[p.bucket].missing;
  start_ready_buckets();
}

/// In bucket order on every rank, whatever the order in which gradients arrive: collectives are matched by order.
void GradientReducer::State::start_ready_buckets() {
  for (; started < buckets.size() && buckets[started].missing == 0; ++started) {
    operation("dovetail::all_reduce_start", {.changes = {buckets[started].flat}},
              [this, group = buckets[started].group.get()](const Operands& of) {
                const TraceSpan span("start all_reduce");
                const UnrecordedAllocations of_the_group;
                running.push_back(group->all_reduce_async(of.changes[0]));
                return std::vector<at::Tensor>();
              });
  }
}

GradientReducer::GradientReducer(const std::shared_ptr<Group>& group, std::vector<at::Tensor> parameters,
                                 Options options)
    : state_(std::make_unique<State>()) {
  DOVETAIL_CHECK(options.bucket_bytes > 0, "bucket_bytes is {}", options.bucket_bytes);
  DOVETAIL_CHECK(options.groups.empty() || options.groups.size() == parameters.size(), "{} groups for {} parameters",
                 options.groups.size(), parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i)
    state_->add_parameter(parameters[i], options.groups.empty() ? group : options.groups[i], i);
  state_->make_buckets(options.bucket_bytes);
}

GradientReducer::~GradientReducer() {
  for (auto& p : state_->parameters) p.accumulator->del_post_hook(p.hook);
}

void GradientReducer::begin() {
  state_->armed = false;
  for (auto& work : state_->running) work->wait();  // of a step that failed half-way, on all ranks alike
  state_->running.clear();
  state_->started = 0;
  for (auto& p : state_->parameters) {
    p.tensor.mutable_grad().reset();
    p.summed = p.arrived = false;
    if (p.alone()) p.sum.reset();  // made where it is needed, and so in a recorded step a tensor of that step
  }
  for (auto& bucket : state_->buckets) bucket.missing = bucket.parameters.size();
}

void GradientReducer::arm() {
  DOVETAIL_CHECK(!state_->armed, "arm() twice without begin()");
  state_->armed = true;
}

void GradientReducer::finish() {
  DOVETAIL_CHECK(state_->armed, "finish() without arm()");
  state_->armed = false;
  for (auto& p : state_->parameters)
    if (!p.alone() && !p.summed) p.sum.zero_();
  for (auto& bucket : state_->buckets) bucket.missing = 0;
  state_->start_ready_buckets();
  Operands all;
  for (const auto& bucket : state_->buckets) all.changes.push_back(bucket.flat);
  if (all.changes.empty()) return;
  operation("dovetail::all_reduce_wait", std::move(all), [state = state_.get()](const Operands&) {
    const double start = now_seconds();
    const TraceSpan span("wait all_reduce");
    const UnrecordedAllocations of_the_group;
    for (auto& work : state->running) work->wait();
    state->running.clear();
    state->exposed_s = now_seconds() - start;
    return std::vector<at::Tensor>();
  });
}

at::Tensor GradientReducer::gradient(size_t i) const {
  DOVETAIL_CHECK(i < size(), "there is no parameter {}", i);
  const auto& p = state_->parameters[i];
  if (!p.alone() || p.summed) return p.sum;
  const auto& grad = p.tensor.grad();
  return grad.defined() ? grad : at::zeros_like(p.tensor);
}

size_t GradientReducer::size() const { return state_->parameters.size(); }

const Group& GradientReducer::group(size_t i) const {
  DOVETAIL_CHECK(i < size(), "there is no parameter {}", i);
  return *state_->parameters[i].group;
}

double GradientReducer::exposed_s() const { return state_->exposed_s; }

}  // namespace dovetail
