#include "dovetail/plan/run/executor.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>

#include "dovetail/base/error.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/record/capture.h"
#include "dovetail/plan/record/packable.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/solve/solve.h"
#include "tests/base/temporary_folder.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/small_step.h"

namespace dovetail::plan::executor_test {
namespace {

constexpr int kSteps = 20;

struct Trained {
  std::vector<at::Tensor> losses, halfway, values;
};

void set_values(const StepTensors& tensors, const std::vector<at::Tensor>& values) {
  size_t i = 0;
  for (const auto* list : {&tensors.parameters, &tensors.state})
    for (const auto& [name, tensor] : *list) tensor.detach().copy_(values[i++]);
}

/// Trains 20 steps by `run`, which returns the loss. Halfway it reads and changes all values.
template <class Step>
Trained train_by(Step& step, const std::function<at::Tensor()>& run) {
  Trained out;
  at::manual_seed(5);
  for (int i = 0; i < kSteps; ++i) {
    if (i == kSteps / 2) {
      out.halfway = step.values();
      auto changed = step.values();
      for (at::Tensor& value : changed) value.mul_(0.9);
      set_values(step.tensors(), changed);
    }
    step.new_batch(i);
    out.losses.push_back(run().clone());
  }
  out.values = step.values();
  return out;
}

void expect_same_bits(const Trained& a, const Trained& b) {
  for (int i = 0; i < kSteps; ++i)
    EXPECT_TRUE(a.losses[i].equal(b.losses[i])) << "loss of step " << i;
  for (size_t i = 0; i < a.values.size(); ++i) {
    EXPECT_TRUE(a.halfway[i].equal(b.halfway[i])) << "tensor " << i << " halfway";
    EXPECT_TRUE(a.values[i].equal(b.values[i])) << "tensor " << i;
  }
}

/// Linear layers whose Adam state is far larger than the layers' tensors.
class AdamStep {
 public:
  AdamStep() {
    at::manual_seed(1);
    for (int i = 0; i < kLayers; ++i) {
      const std::string name = "linear" + std::to_string(i);
      parameters_.emplace_back(name, (at::randn({kWidth, kWidth}) * 0.05).requires_grad_());
      state_.emplace_back(name + ".first", at::zeros({kWidth, kWidth}));
      state_.emplace_back(name + ".second", at::zeros({kWidth, kWidth}));
    }
    input_ = at::randn({8, kWidth});
  }

  std::vector<at::Tensor> operator()() {
    for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
    at::Tensor x = input_;
    for (auto& [name, parameter] : parameters_) x = at::linear(x, parameter).relu();
    const at::Tensor loss = (x - input_).square().mean();
    torch::autograd::backward({loss}, {});
    const at::NoGradGuard no_grad;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const at::Tensor& gradient = parameters_[p].second.grad();
      at::Tensor &first = state_[2 * p].second, &second = state_[2 * p + 1].second;
      first.mul_(0.9).add_(gradient, 0.1);
      second.mul_(0.99).addcmul_(gradient, gradient, 0.01);
      parameters_[p].second.addcdiv_(first, second.sqrt().add_(1e-8), -1e-3);
    }
    return {loss.detach()};
  }

  StepTensors tensors() const {
    return {.inputs = {{"input", input_}}, .parameters = parameters_, .state = state_};
  }

  void new_batch(uint64_t step) {
    input_.copy_(at::randn(input_.sizes(), at::detail::createCPUGenerator(step)));
  }

  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> out;
    for (const auto* list : {&parameters_, &state_})
      for (const auto& [name, tensor] : *list) out.push_back(tensor.detach().clone());
    return out;
  }

  static constexpr int64_t kLayers = 8, kWidth = 192, kBytes = 3 * kLayers * kWidth * kWidth * 4;

 private:
  std::vector<std::pair<std::string, at::Tensor>> parameters_, state_;
  at::Tensor input_;
};

/// Returns the decoded codes of x, by the operators of torch.ops.
at::Tensor quantized(const at::Tensor& x, int64_t axis) {
  auto& dispatcher = c10::Dispatcher::singleton();
  static const auto quantize = dispatcher.findSchemaOrThrow("dovetail::mx_quantize", "");
  static const auto dequantize = dispatcher.findSchemaOrThrow("dovetail::mx_dequantize", "");
  torch::jit::Stack stack;
  torch::jit::push(stack, x, std::string("e4m3"), std::string("round_up"), axis,
                   std::string("poison"));
  quantize.callBoxed(stack);
  torch::jit::push(stack, std::string("e4m3"), axis, static_cast<int64_t>(at::kFloat));
  dequantize.callBoxed(stack);
  return stack.at(0).toTensor();
}

/// The gradient is taken at the tensor as quantized along columns.
class QuantizedSine : public torch::autograd::Function<QuantizedSine> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return quantized(x, -1).sin();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * quantized(context->get_saved_variables()[0], 0).cos()};
  }
};

/// Layers that save their input for backward. Backward reads only its codes.
class CodesStep {
 public:
  CodesStep() {
    at::manual_seed(1);
    for (int i = 0; i < 4; ++i)
      parameters_.emplace_back("w" + std::to_string(i),
                               (at::randn({kWidth, kWidth}) * 0.1).requires_grad_());
    input_ = at::randn({96, kWidth});
  }

  std::vector<at::Tensor> operator()() {
    for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
    at::Tensor x = input_;
    for (auto& [name, parameter] : parameters_) x = QuantizedSine::apply(x.mm(parameter));
    const at::Tensor loss = (x - input_).square().mean();
    torch::autograd::backward({loss}, {});
    const at::NoGradGuard no_grad;
    for (auto& [name, parameter] : parameters_) parameter.add_(parameter.grad(), -1e-3);
    return {loss.detach()};
  }

  StepTensors tensors() const { return {.inputs = {{"input", input_}}, .parameters = parameters_}; }
  void new_batch(uint64_t step) {
    input_.copy_(at::randn(input_.sizes(), at::detail::createCPUGenerator(step)));
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> out;
    for (const auto& [name, tensor] : parameters_) out.push_back(tensor.detach().clone());
    return out;
  }

 private:
  static constexpr int64_t kWidth = 64;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  at::Tensor input_;
};

/// Nodes that make a storage, read it last before the backward pass and read it first in backward.
struct Gap {
  int tensor = -1, maker = -1, leaves_after = -1, needed_by = -1;
};

std::vector<Gap> gaps(const CapturedStep& step, const StepGraph& graph) {
  std::vector<Gap> out;
  for (size_t t = 0; t < graph.graph.tensors.size(); ++t) {
    Gap gap{.tensor = static_cast<int>(t)};
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const GraphNode& node = graph.graph.nodes[n];
      const auto has = [&](const std::vector<int>& list) {
        return std::find(list.begin(), list.end(), t) != list.end();
      };
      if (has(node.outputs)) gap.maker = static_cast<int>(n);
      if (!has(node.inputs) && !has(node.outputs) && !has(node.mutates)) continue;
      if (!step.operations[graph.nodes[n].first].backward && gap.needed_by < 0)
        gap.leaves_after = static_cast<int>(n);
      else if (gap.needed_by < 0)
        gap.needed_by = static_cast<int>(n);
    }
    if (gap.leaves_after >= 0 && gap.needed_by > gap.leaves_after + 1) out.push_back(gap);
  }
  return out;
}

template <class Step>
class PlanOf : public ::testing::Test {
 protected:
  PlanOf() {
    reference_ = train_by(eager_step_, [&] { return eager_step_()[0]; });
    step_();
    captured_ = capture([&] { return step_(); }, step_.tensors());
    graph_ = graph_of(captured_);
    graph_.graph.budget_bytes = int64_t{1} << 40;
    graph_.graph.bandwidth = {.to_host = 1e9, .to_device = 1e9};
    for (GraphNode& node : graph_.graph.nodes) node.algorithms[0].time_s = 1e-4;
    plan_ = keep_all(graph_.graph);
    std::erase_if(plan_.actions, [&](const Action& action) {  // results stay
      return action.op == Op::kFree &&
             std::count(graph_.graph.final.begin(), graph_.graph.final.end(), action.tensor);
    });
  }

  int position_of(int node) const {
    const auto found =
        std::find_if(plan_.actions.begin(), plan_.actions.end(),
                     [&](const Action& a) { return a.op == Op::kCompute && a.node == node; });
    return static_cast<int>(found - plan_.actions.begin());
  }
  void insert(int at, Action action) {
    plan_.actions.insert(plan_.actions.begin() + at, std::move(action));
  }

  /// Trains as `eager` does, from the same values.
  Trained train(const std::filesystem::path& folder = {}) {
    set_values(step_.tensors(), Step().values());
    Trained out;
    {
      Executor executor(captured_, graph_, plan_, {.folder = folder});
      EXPECT_LE(executor.arena_bytes(), graph_.graph.budget_bytes);
      peak_bytes_ = executor.predicted().peak_bytes;
      arena_bytes_ = executor.arena_bytes();
      out = train_by(step_, [&] {
        executor.run();
        return executor.results()[0];
      });
    }
    const auto values = step_.values();  // values are back in their own memory
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(values[i].equal(out.values[i])) << "tensor " << i;
    return out;
  }

  Step eager_step_, step_;
  Trained reference_;
  CapturedStep captured_;
  StepGraph graph_;
  Plan plan_;
  int64_t peak_bytes_ = 0, arena_bytes_ = 0;
};
using ExecutedPlan = PlanOf<SmallStep>;
using PlanAcrossSteps = PlanOf<AdamStep>;
using PlanOfCodes = PlanOf<CodesStep>;

TEST_F(ExecutedPlan, KeepingAllIsEagerTrainingBitForBit) {
  expect_same_bits(train(), reference_);
  EXPECT_LE(static_cast<double>(arena_bytes_), 1.05 * static_cast<double>(peak_bytes_));
}

TEST_F(ExecutedPlan, OffloadedActivationsParametersAndStateComeBackBitForBit) {
  const int64_t all = check(graph_.graph, plan_).peak_bytes;
  int moved = 0;
  for (const Gap& gap : gaps(captured_, graph_)) {
    if (graph_.graph.tensors[gap.tensor].bytes < 64 * 1024) continue;
    ++moved;
    insert(position_of(gap.needed_by), {.op = Op::kFreeHost, .tensor = gap.tensor});
    insert(position_of(gap.needed_by) - 1, {.op = Op::kPrefetch, .tensor = gap.tensor});
    insert(position_of(gap.leaves_after) + 1, {.op = Op::kFree, .tensor = gap.tensor});
    insert(position_of(gap.leaves_after) + 1, {.op = Op::kOffload, .tensor = gap.tensor});
  }
  EXPECT_GE(moved, 3);
  expect_same_bits(train(), reference_);
  EXPECT_LT(peak_bytes_, all);
  const test::TemporaryFolder folder;
  expect_same_bits(train(folder.path()), reference_);
}

TEST_F(ExecutedPlan, OperationsRunAgainDrawTheSameNumbers) {
  int again = 0, random = 0;
  for (const Gap& gap : gaps(captured_, graph_)) {
    if (gap.maker < 0) continue;
    const GraphNode& maker = graph_.graph.nodes[gap.maker];
    // Tests gaps one by one, so that inputs of recomputed nodes are available. Only the step's own
    // saved tensors stay.
    const bool inputs_stay = std::all_of(maker.inputs.begin(), maker.inputs.end(), [&](int t) {
      return graph_.graph.tensors[t].kind != TensorKind::kActivation;
    });
    const bool norm =
        maker.name.starts_with("aten::native_batch_norm");  // three results; changes its statistics
    EXPECT_TRUE(!norm || maker.runs_once());
    if (maker.runs_once() || (!inputs_stay && !maker.random && !norm)) continue;
    ++again;
    random += maker.random ? 1 : 0;
    insert(position_of(gap.needed_by), {.op = Op::kCompute, .node = gap.maker});
    insert(position_of(gap.leaves_after) + 1, {.op = Op::kFree, .tensor = gap.tensor});
    if (maker.random || norm)  // its inputs are kept to the end
      for (const int t : maker.inputs) {
        const auto freed =
            std::find_if(plan_.actions.begin(), plan_.actions.end(),
                         [&](const Action& a) { return a.op == Op::kFree && a.tensor == t; });
        if (freed == plan_.actions.end()) continue;
        const Action free = *freed;
        plan_.actions.erase(freed);
        plan_.actions.push_back(free);
      }
  }
  EXPECT_GE(again, 1);
  EXPECT_GE(random, 2);
  expect_same_bits(train(), reference_);
}

TEST_F(PlanAcrossSteps, ParametersAndStateThatStartOnTheHostAreThoseOfEagerTrainingBitForBit) {
  const auto& nodes = graph_.graph.nodes;
  for (size_t i = 0; i < graph_.graph.tensors.size(); ++i) {
    const int t = static_cast<int>(i);
    if (!may_start_on_host(graph_.graph.tensors[i].kind)) continue;
    int first = -1, first_write = -1, last = -1;
    for (size_t n = 0; n < nodes.size(); ++n) {
      const bool writes = std::count(nodes[n].mutates.begin(), nodes[n].mutates.end(), t) > 0;
      if (!writes && std::count(nodes[n].inputs.begin(), nodes[n].inputs.end(), t) == 0) continue;
      last = static_cast<int>(n);
      if (first < 0) first = last;
      if (writes && first_write < 0) first_write = last;
    }
    ASSERT_GE(first_write, 0);
    plan_.starts_on_host.push_back(t);
    insert(position_of(last) + 1, {.op = Op::kFree, .tensor = t});
    insert(position_of(last) + 1, {.op = Op::kOffload, .tensor = t});
    insert(position_of(first), {.op = Op::kPrefetch, .tensor = t});
    insert(position_of(first_write), {.op = Op::kFreeHost, .tensor = t});
  }
  ASSERT_EQ(plan_.starts_on_host.size(), 3 * AdamStep::kLayers);
  expect_same_bits(train(), reference_);
  EXPECT_LT(arena_bytes_, AdamStep::kBytes);
  const test::TemporaryFolder folder;
  expect_same_bits(train(folder.path()), reference_);
  // Runs eager steps afterwards: the executor left the values intact.
  set_values(step_.tensors(), AdamStep().values());
  expect_same_bits(train_by(step_, [&] { return step_()[0]; }), reference_);
}

TEST_F(PlanAcrossSteps, SolvedPlansTakeLessThanParametersAndState) {
  graph_.graph.bandwidth = {.to_host = 1e10, .to_device = 1e10};
  SolveOptions options{.compress = false, .least_bytes = kPagedBytes, .time_limit_s = 0.5};
  options.across_steps = false;
  const int64_t resident = floor_of(graph_.graph, options).bytes;
  EXPECT_GT(resident, AdamStep::kBytes);
  options.across_steps = true;
  const int64_t floor = floor_of(graph_.graph, options).bytes;
  EXPECT_LT(floor, AdamStep::kBytes / 4);
  const test::TemporaryFolder folder;
  for (const double share : {0.3, 0.7}) {
    SCOPED_TRACE(share);
    graph_.graph.budget_bytes = static_cast<int64_t>(share * static_cast<double>(resident));
    plan_ = solve(graph_.graph, options).schedule.plan;
    EXPECT_FALSE(plan_.starts_on_host.empty());
    graph_.graph.budget_bytes +=
        graph_.graph.budget_bytes / 10;  // for what the addresses leave unused
    expect_same_bits(train(share < 0.5 ? folder.path() : ""), reference_);
  }
}

/// Step in which `saved` is made, read, unused for a while and read a second time.
struct PackedStep {
  explicit PackedStep(at::ScalarType dtype, int64_t elements) : x(at::randn({elements}).to(dtype)) {
    captured = capture([&] { return run([](const at::Tensor& saved) { return saved; }); },
                       {.inputs = {{"x", x}}});
    graph = graph_of(captured);
    graph.forms = {{.dtype = dtype}};
    graph.graph.codecs = {codec_of(graph.forms[0], kLargestError)};
    graph.graph.tensors[kSaved].lossy_ok = true;
    graph.graph.tensors[kSaved].codecs = {0};
    graph.graph.budget_bytes = int64_t{1} << 40;
    for (GraphNode& node : graph.graph.nodes) node.algorithms[0].time_s = 1;
    plan = keep_all(graph.graph);
    EXPECT_EQ(graph.graph.tensors[kSaved].id, graph.graph.nodes[0].name);
    insert(4, {.op = Op::kFreePacked, .tensor = kSaved});
    insert(4, {.op = Op::kDecompress, .tensor = kSaved});
    insert(2, {.op = Op::kFree, .tensor = kSaved});
    insert(2, {.op = Op::kCompress, .tensor = kSaved, .codec = 0});
  }

  /// `between` changes `saved` before its second read.
  std::vector<at::Tensor> run(const std::function<at::Tensor(const at::Tensor&)>& between) const {
    const at::Tensor saved = x * 1.5;
    const at::Tensor other = saved.sin().cos();
    return {between(saved) * other};
  }

  void insert(int at, Action action) {
    plan.actions.insert(plan.actions.begin() + at, std::move(action));
  }

  static constexpr int kSaved = 1;
  at::Tensor x;
  CapturedStep captured;
  StepGraph graph;
  Plan plan;
};

TEST(PackedPlan, ReadersGetWhatTheCodesSay) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t elements : {1, 31, 33, 2049, 50021}) {
      SCOPED_TRACE(fmt::format("{} of {}", elements, c10::toString(dtype)));
      PackedStep step(dtype, elements);
      Executor executor(step.captured, step.graph, step.plan, {});
      for (int i = 0; i < 3; ++i) {
        step.x.copy_(at::randn({elements}));
        executor.run();
        const auto expected = step.run([&](const at::Tensor& saved) {
          return mx::dequantize(mx::quantize(saved).row, dtype);
        });
        EXPECT_TRUE(executor.results()[0].equal(expected[0]));
      }
    }
}

TEST(PackedPlan, TakesThePackedBytesInTheArena) {
  PackedStep step(at::kFloat, 64 * 1024);
  const int64_t bytes = 256 * 1024, packed = bytes * 33 / 128;
  const Plan kept = keep_all(step.graph.graph);
  // Holds x, saved and two of these: the sine, the cosine of the sine, the product. If packed,
  // saved is absent while the cosine is computed.
  EXPECT_EQ(check(step.graph.graph, kept).peak_bytes, 4 * bytes);
  const Timeline timeline = check(step.graph.graph, step.plan);
  EXPECT_EQ(timeline.peak_bytes, 4 * bytes);  // x, saved, cosine and product at the last node
  int64_t most_before = 0;
  for (const MemoryPoint& point : timeline.memory)
    if (point.time_s < timeline.actions[8].start_s)
      most_before = std::max(most_before, point.bytes);
  EXPECT_EQ(most_before, 3 * bytes + packed);
  const Executor executor(step.captured, step.graph, step.plan, {});
  EXPECT_LE(executor.arena_bytes(), timeline.peak_bytes + packed);
}

TEST(PackedPlan, ACodecThatIsNotTheTensorsIsAnError) {
  PackedStep step(at::kFloat, 100);
  step.graph.graph.tensors[PackedStep::kSaved].codecs.reset();
  EXPECT_THAT([&] { Executor(step.captured, step.graph, step.plan, {}); },
              ::testing::ThrowsMessage<UserError>(
                  ::testing::HasSubstr("is packed by e4m3.round_up.float32, but it is not known")));
  step.graph.graph.tensors[PackedStep::kSaved].codecs.emplace();
  EXPECT_THROW(Executor(step.captured, step.graph, step.plan, {}), InvalidPlan);
}

TEST_F(ExecutedPlan, WithLossTrainsWithinABound) {
  allow_loss(captured_, graph_);
  measure_codecs(graph_, 1 << 20, 3);
  SolveOptions options{
      .offload = false, .recompute = false, .least_bytes = kPagedBytes, .time_limit_s = 1};
  graph_.graph.budget_bytes =
      (floor_of(graph_.graph, options).bytes + check(graph_.graph, plan_).peak_bytes) / 2;
  plan_ = solve(graph_.graph, options).schedule.plan;
  const auto packs = std::count_if(plan_.actions.begin(), plan_.actions.end(),
                                   [](const Action& action) { return action.op == Op::kCompress; });
  EXPECT_GE(packs, 1);
  graph_.graph.budget_bytes +=
      graph_.graph.budget_bytes / 10;  // for what the addresses leave unused
  const Trained trained = train();
  EXPECT_FALSE(trained.values[0].equal(reference_.values[0]));
  EXPECT_TRUE(
      trained.losses[0].equal(reference_.losses[0]));  // forward reads nothing that was packed
  const auto mean = [](const Trained& of) { return at::stack(of.losses).mean().item<float>(); };
  EXPECT_NEAR(mean(trained), mean(reference_), 0.03 * mean(reference_));
}

TEST_F(PlanOfCodes, InWhichReadersMakeTheSameCodesIsEagerTrainingBitForBit) {
  allow_same_codes(captured_, graph_);
  ASSERT_EQ(graph_.graph.codecs.size(), 1U);
  EXPECT_EQ(graph_.graph.codecs[0].name, "e4m3.round_up.columns64.float32.same_codes");
  measure_codecs(graph_, 1 << 16, 3);
  const int64_t all = check(graph_.graph, plan_).peak_bytes;
  const SolveOptions options{.offload = false, .recompute = false, .time_limit_s = 1};
  graph_.graph.budget_bytes = (floor_of(graph_.graph, options).bytes + all) / 2;
  plan_ = solve(graph_.graph, options).schedule.plan;
  const auto packs = std::count_if(plan_.actions.begin(), plan_.actions.end(),
                                   [](const Action& action) { return action.op == Op::kCompress; });
  EXPECT_GE(packs, 1);
  graph_.graph.budget_bytes +=
      graph_.graph.budget_bytes / 10;  // for what the addresses leave unused
  expect_same_bits(train(), reference_);
}

TEST_F(ExecutedPlan, WhatIsTooSmallToBeOffloadedMayNotStartOnTheHost) {
  const auto& tensors = graph_.graph.tensors;
  const auto small = std::find_if(tensors.begin(), tensors.end(),
                                  [](const auto& t) { return t.id == "norm.weight.momentum"; });
  ASSERT_NE(small, tensors.end());
  const int t = static_cast<int>(small - tensors.begin());
  plan_.starts_on_host = {t};
  const auto user =
      std::find_if(plan_.actions.begin(), plan_.actions.end(), [&](const Action& action) {
        if (action.op != Op::kCompute) return false;
        const auto& list = graph_.graph.nodes[action.node].mutates;
        return std::count(list.begin(), list.end(), t) > 0;
      });
  ASSERT_NE(user, plan_.actions.end());
  const int at = static_cast<int>(user - plan_.actions.begin());
  plan_.actions.push_back({.op = Op::kOffload, .tensor = t});
  insert(at, {.op = Op::kFreeHost, .tensor = t});
  insert(0, {.op = Op::kPrefetch, .tensor = t});
  EXPECT_THAT([&] { Executor(captured_, graph_, plan_, {}); },
              ::testing::ThrowsMessage<UserError>(
                  ::testing::HasSubstr("norm.weight.momentum of 256 bytes is too small")));
}

TEST_F(ExecutedPlan, AnotherShapeIsAnError) {
  graph_.nodes[0].memory.places[0][0].bytes += 4;
  Executor executor(captured_, graph_, plan_, {});
  EXPECT_THAT([&] { executor.run(); }, ::testing::ThrowsMessage<UserError>(::testing::HasSubstr(
                                           "its shapes differ from the captured step")));
  EXPECT_THAT([&] { executor.run(); },
              ::testing::ThrowsMessage<UserError>(::testing::HasSubstr("cannot go on")));
}

}  // namespace
}  // namespace dovetail::plan::executor_test
