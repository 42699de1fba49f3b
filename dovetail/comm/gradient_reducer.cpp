#include "dovetail/comm/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <deque>
#include <functional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"

namespace dovetail::comm {
namespace {

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
    at::Tensor sum;  // view into its bucket; undefined if .grad() is the sum
    size_t bucket = 0;
    bool summed = false;                                 // `sum` has gradients of this step
    bool arrived = false;                                // in the armed backward
    std::shared_ptr<torch::autograd::Node> accumulator;  // kept alive: autograd holds it weakly
    uintptr_t hook = 0;

    bool alone() const { return group->size() == 1; }
  };
  /// Gradient sums of a Bucket.
  struct Sums {
    at::Tensor flat;     // with scatter padded to equal shares; undefined outside backward
    at::Tensor share;    // with scatter: this rank's share, summed over micro-batches so far
    size_t missing = 0;  // number of gradients of the armed backward still missing
  };
  /// A running reduction. With scatter it owns its bucket's memory.
  struct Running {
    std::unique_ptr<Group::Work> work;
    size_t bucket;
    at::Tensor flat;
  };

  std::vector<Parameter> parameters;
  std::vector<Bucket> buckets;
  std::vector<Sums> sums;  // by bucket
  std::deque<Running> running;
  size_t started = 0;  // reductions of buckets [0, started) of this backward have started
  bool scatter = false;
  bool armed = false;
  double exposed_s = 0;

  void add_parameter(const at::Tensor& tensor, std::shared_ptr<Group> group, size_t i);
  void make_sums(size_t b);
  void arrived(size_t i);
  void add_to_sum(Parameter& p);
  void start_ready_buckets();
  void all_reduce(size_t b);
  void reduce_scatter(size_t b);
  void take_first_share();
};

void GradientReducer::State::add_parameter(const at::Tensor& tensor, std::shared_ptr<Group> group,
                                           size_t i) {
  DOVETAIL_CHECK(tensor.defined() && tensor.is_leaf() && tensor.requires_grad() &&
                     tensor.is_floating_point() && tensor.is_contiguous(),
                 "parameter {} is not a contiguous floating point leaf that requires grad", i);
  auto& p = parameters.emplace_back();
  p.tensor = tensor;
  p.group = std::move(group);
  p.accumulator = torch::autograd::impl::grad_accumulator(tensor);
  p.hook =
      p.accumulator->add_post_hook(std::make_unique<AccumulatedHook>([this, i] { arrived(i); }));
}

/// Allocates a bucket's sums and makes a view of them for each of its parameters.
void GradientReducer::State::make_sums(size_t b) {
  const Bucket& bucket = buckets[b];
  const auto& first = parameters[bucket.parameters.front()].tensor;
  at::Tensor& flat = sums[b].flat;
  const int64_t size = scatter ? bucket.share() * bucket.group->size() : bucket.elements();
  flat =
      at::empty({size}, first.options().dtype(sum_dtype(first.scalar_type())).requires_grad(false));
  flat.slice(0, bucket.elements()).zero_();
  int64_t offset = 0;
  for (const size_t i : bucket.parameters) {
    auto& p = parameters[i];
    p.sum = flat.narrow(0, offset, p.tensor.numel()).view(p.tensor.sizes());
    offset += p.tensor.numel();
  }
}

/// Adds `.grad()` to the sum and resets it. The first gradient of a step overwrites the sum, so
/// buckets need not be cleared.
void GradientReducer::State::add_to_sum(Parameter& p) {
  const at::NoGradGuard no_grad;
  auto& grad = p.tensor.mutable_grad();
  if (!p.sum.defined() && !p.alone()) make_sums(p.bucket);
  if (!p.sum.defined())
    p.sum =
        at::empty(p.tensor.sizes(),
                  p.tensor.options().dtype(sum_dtype(p.tensor.scalar_type())).requires_grad(false));
  if (p.summed)
    p.sum.add_(grad);
  else
    p.sum.copy_(grad);
  p.summed = true;
  grad.reset();
}

void GradientReducer::State::arrived(size_t i) {
  auto& p = parameters[i];
  if (!p.tensor.grad().defined()) return;  // its autograd function returned no gradient
  if (p.alone()) {
    // In a group of one `.grad()` is the sum. The exception is a sum of micro-batches that would
    // lose precision in 16 bits.
    const bool narrow = p.tensor.scalar_type() != sum_dtype(p.tensor.scalar_type());
    if (narrow && (p.summed || !armed)) add_to_sum(p);
    return;
  }
  DOVETAIL_CHECK(!(armed && p.arrived),
                 "parameter {} got a second gradient in the armed backward, after its bucket may "
                 "have been sent",
                 i);
  DOVETAIL_CHECK(armed || !scatter, "parameter {} got a gradient before arm()", i);
  add_to_sum(p);
  if (!armed) return;
  p.arrived = true;
  --sums[p.bucket].missing;
  start_ready_buckets();
}

/// Starts buckets in the same order on every rank, independent of the order of gradients.
/// Collectives are matched by order.
void GradientReducer::State::start_ready_buckets() {
  for (; started < buckets.size() && sums[started].missing == 0; ++started)
    scatter ? reduce_scatter(started) : all_reduce(started);
}

void GradientReducer::State::all_reduce(size_t b) {
  operation("dovetail::all_reduce_start", {.changes = {sums[b].flat}},
            [this, b](const Operands& inputs) {
              const TraceSpan span("start all_reduce");
              const UnrecordedAllocations of_the_group;
              running.push_back(
                  {.work = buckets[b].group->all_reduce_async(inputs.changes[0]), .bucket = b});
              return std::vector<at::Tensor>();
            });
}

void GradientReducer::State::reduce_scatter(size_t b) {
  constexpr size_t kAtOnce = 2;  // maximum number of full buckets in memory
  if (running.size() == kAtOnce) take_first_share();
  const at::NoGradGuard no_grad;
  if (!sums[b].flat.defined()) make_sums(b);
  for (const size_t i : buckets[b].parameters) {
    auto& p = parameters[i];
    if (!p.summed) p.sum.zero_();
    p.sum.reset();
    p.summed = false;
  }
  const TraceSpan span("start reduce_scatter");
  running.push_back({.work = buckets[b].group->reduce_scatter_async(sums[b].flat),
                     .bucket = b,
                     .flat = std::exchange(sums[b].flat, {})});
}

void GradientReducer::State::take_first_share() {
  const double start = now_seconds();
  const TraceSpan span("wait reduce_scatter");
  Running first = std::move(running.front());
  running.pop_front();
  first.work->wait();
  exposed_s += now_seconds() - start;
  const at::NoGradGuard no_grad;
  const Bucket& bucket = buckets[first.bucket];
  const at::Tensor part =
      first.flat.narrow(0, bucket.group->rank() * bucket.share(), bucket.share());
  at::Tensor& share = sums[first.bucket].share;
  share = share.defined() ? share.add_(part) : part.clone();
}

GradientReducer::GradientReducer(const std::shared_ptr<Group>& group,
                                 std::vector<at::Tensor> parameters, Options options)
    : state_(std::make_unique<State>()) {
  DOVETAIL_CHECK(options.bucket_bytes > 0, "bucket_bytes is {}", options.bucket_bytes);
  DOVETAIL_CHECK(options.groups.empty() || options.groups.size() == parameters.size(),
                 "{} groups for {} parameters", options.groups.size(), parameters.size());
  if (options.groups.empty()) options.groups.assign(parameters.size(), group);
  for (size_t i = 0; i < parameters.size(); ++i)
    state_->add_parameter(parameters[i], options.groups[i], i);
  state_->scatter = options.scatter && group->size() > 1;
  state_->buckets = make_buckets(parameters, options.groups, options.bucket_bytes);
  state_->sums.resize(state_->buckets.size());
  for (size_t b = 0; b < state_->buckets.size(); ++b) {
    for (const size_t i : state_->buckets[b].parameters) state_->parameters[i].bucket = b;
    if (!options.scatter) state_->make_sums(b);
  }
}

GradientReducer::~GradientReducer() {
  for (auto& p : state_->parameters) p.accumulator->del_post_hook(p.hook);
}

void GradientReducer::begin() {
  state_->armed = false;
  for (auto& running : state_->running)
    running.work->wait();  // left by a step that failed half-way, on all ranks alike
  state_->running.clear();
  state_->exposed_s = 0;
  for (auto& p : state_->parameters) {
    p.tensor.mutable_grad().reset();
    p.summed = false;
    // Allocated where it is needed. In a recorded step it is then a tensor of that step.
    if (p.alone()) p.sum.reset();
  }
  for (auto& sums : state_->sums) sums.share.reset();
}

void GradientReducer::arm() {
  DOVETAIL_CHECK(!state_->armed, "arm() twice without finish()");
  state_->armed = true;
  state_->started = 0;
  for (auto& p : state_->parameters) p.arrived = false;
  for (size_t b = 0; b < state_->buckets.size(); ++b)
    state_->sums[b].missing = state_->buckets[b].parameters.size();
}

void GradientReducer::finish() {
  DOVETAIL_CHECK(state_->armed, "finish() without arm()");
  state_->armed = false;
  for (auto& sums : state_->sums) sums.missing = 0;
  if (state_->scatter) {
    state_->start_ready_buckets();
    while (!state_->running.empty()) state_->take_first_share();
    return;
  }
  for (auto& p : state_->parameters)
    if (!p.alone() && !p.summed) p.sum.zero_();
  state_->start_ready_buckets();
  Operands all;
  for (const auto& sums : state_->sums) all.changes.push_back(sums.flat);
  if (all.changes.empty()) return;
  operation("dovetail::all_reduce_wait", std::move(all), [state = state_.get()](const Operands&) {
    const double start = now_seconds();
    const TraceSpan span("wait all_reduce");
    const UnrecordedAllocations of_the_group;
    for (auto& running : state->running) running.work->wait();
    state->running.clear();
    state->exposed_s = now_seconds() - start;
    return std::vector<at::Tensor>();
  });
}

at::Tensor GradientReducer::gradient(size_t i) const {
  DOVETAIL_CHECK(i < size(), "there is no parameter {}", i);
  const auto& p = state_->parameters[i];
  DOVETAIL_CHECK(p.alone() || !scatters(), "gradient({}) of a reducer that keeps shares", i);
  if (!p.alone() || p.summed) return p.sum;
  const auto& grad = p.tensor.grad();
  return grad.defined() ? grad : at::zeros_like(p.tensor);
}

void GradientReducer::add(size_t i, const at::Tensor& gradient) {
  DOVETAIL_CHECK(i < size(), "there is no parameter {}", i);
  auto& p = state_->parameters[i];
  DOVETAIL_CHECK(p.alone(), "parameter {} has gradients on other ranks", i);
  const at::NoGradGuard no_grad;
  auto& grad = p.tensor.mutable_grad();
  const bool narrow = p.tensor.scalar_type() != sum_dtype(p.tensor.scalar_type());
  if (!narrow && grad.defined()) {
    grad.add_(gradient);
  } else if (!narrow) {
    grad = gradient.clone();
  } else {
    DOVETAIL_CHECK(!grad.defined(), "parameter {} has a gradient of an armed backward", i);
    grad = gradient;
    state_->add_to_sum(p);
  }
}

void GradientReducer::replace(const std::vector<at::Tensor>& sums) {
  DOVETAIL_CHECK(sums.size() == size(), "{} sums for {} parameters", sums.size(), size());
  for (size_t i = 0; i < size(); ++i) {
    auto& p = state_->parameters[i];
    DOVETAIL_CHECK(p.alone(), "parameter {} has gradients on other ranks", i);
    p.tensor.mutable_grad().reset();
    p.sum = sums[i];
    p.summed = true;
  }
}

at::Tensor GradientReducer::share(size_t b) const {
  DOVETAIL_CHECK(b < buckets().size(), "there is no bucket {}", b);
  if (scatters()) return state_->sums[b].share;
  const int64_t size = buckets()[b].share(), first = buckets()[b].group->rank() * size;
  return state_->sums[b].flat.slice(0, first, first + size);
}

const std::vector<Bucket>& GradientReducer::buckets() const { return state_->buckets; }

bool GradientReducer::scatters() const { return state_->scatter; }

size_t GradientReducer::size() const { return state_->parameters.size(); }

const Group& GradientReducer::group(size_t i) const {
  DOVETAIL_CHECK(i < size(), "there is no parameter {}", i);
  return *state_->parameters[i].group;
}

double GradientReducer::exposed_s() const { return state_->exposed_s; }

}  // namespace dovetail::comm
