#include "dovetail/plan/run/host_updates.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/plan/record/capture.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/show/outcome.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "dovetail/plan/solve/placed.h"
#include "dovetail/plan/solve/search.h"

namespace dovetail::plan::host_updates_test {
namespace {

using ::testing::ElementsAre;

constexpr int kSteps = 12;

/// Linear layers whose update is one operation that changes a weight and two moments.
class UpdatedAtOnce {
 public:
  static constexpr int64_t kLayers = 4, kWidth = 160, kBytes = kWidth * kWidth * 4;

  UpdatedAtOnce() {
    auto generator = at::detail::createCPUGenerator(1);
    for (int i = 0; i < kLayers; ++i) {
      const std::string name = "linear" + std::to_string(i);
      parameters_.emplace_back(name,
                               (at::randn({kWidth, kWidth}, generator) * 0.05).requires_grad_());
      state_.emplace_back(name + ".first", at::zeros({kWidth, kWidth}));
      state_.emplace_back(name + ".second", at::zeros({kWidth, kWidth}));
    }
    input_ = at::randn({8, kWidth}, generator);
  }

  std::vector<at::Tensor> operator()() {
    for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
    at::Tensor x = input_;
    for (auto& [name, parameter] : parameters_) x = at::linear(x, parameter).relu();
    const at::Tensor loss = (x - input_).square().mean();
    torch::autograd::backward({loss}, {});
    for (size_t p = 0; p < parameters_.size(); ++p)
      operation("test::adam",
                {.reads = {parameters_[p].second.grad()},
                 .changes = {parameters_[p].second.detach(), state_[2 * p].second,
                             state_[2 * p + 1].second}},
                [](const Operands& inputs) {
                  at::Tensor weight = inputs.changes[0], first = inputs.changes[1],
                             second = inputs.changes[2];
                  first.mul_(0.9).add_(inputs.reads[0], 0.1);
                  second.mul_(0.99).addcmul_(inputs.reads[0], inputs.reads[0], 0.01);
                  weight.addcdiv_(first, second.sqrt().add_(1e-8), -1e-3);
                  return std::vector<at::Tensor>();
                });
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

 private:
  std::vector<std::pair<std::string, at::Tensor>> parameters_, state_;
  at::Tensor input_;
};

struct Trained {
  std::vector<at::Tensor> losses, values;
};

Trained train_eagerly() {
  UpdatedAtOnce step;
  step.new_batch(0);
  step();
  Trained out;
  for (int i = 0; i < kSteps; ++i) {
    step.new_batch(i);
    out.losses.push_back(step()[0].clone());
  }
  out.values = step.values();
  return out;
}

/// The recorded step after one training step, with all ways to run its updates and their times.
struct Recorded {
  UpdatedAtOnce step;
  CapturedStep captured;
  StepGraph graph;

  Recorded() {
    step.new_batch(0);
    step();
    const auto before = step.values();
    captured = capture(step, step.tensors());
    size_t i = 0;
    const StepTensors tensors = step.tensors();
    for (const auto* list : {&tensors.parameters, &tensors.state})
      for (const auto& [name, tensor] : *list) tensor.detach().copy_(before[i++]);
    graph = graph_of(captured);
    add_host_updates(captured, graph);
    graph.graph.bandwidth = {.to_host = 1e9, .to_device = 1e9};
  }

  Trained train_by(const Plan& plan) {
    Executor executor(captured, graph, plan, {});
    Trained out;
    for (int i = 0; i < kSteps; ++i) {
      step.new_batch(i);
      executor.run();
      out.losses.push_back(executor.results()[0].clone());
    }
    out.values = step.values();
    EXPECT_LE(executor.arena_bytes() + graph.graph.base_bytes, graph.graph.budget_bytes);
    return out;
  }
};

void expect_same_bits(const Trained& a, const Trained& b) {
  for (size_t i = 0; i < a.losses.size(); ++i)
    EXPECT_TRUE(a.losses[i].equal(b.losses[i])) << "loss of step " << i;
  for (size_t i = 0; i < a.values.size(); ++i)
    EXPECT_TRUE(a.values[i].equal(b.values[i])) << "tensor " << i;
}

/// Returns the number of updates that run by an algorithm.
int runs_by(const Graph& graph, const Plan& plan, const std::string& name) {
  return static_cast<int>(
      std::count_if(plan.actions.begin(), plan.actions.end(), [&](const Action& action) {
        return action.op == Op::kCompute &&
               graph.nodes[action.node].algorithms[action.algorithm].name == name;
      }));
}

TEST(HostUpdates, AreWaysToRunWhatChangesStateThatNothingElseUses) {
  const Recorded recorded;
  const Graph& graph = recorded.graph.graph;
  int updates = 0;
  for (const GraphNode& node : graph.nodes) {
    if (!node.name.starts_with("test::adam")) {
      EXPECT_EQ(node.algorithms.size(), 1) << node.name;
      continue;
    }
    ++updates;
    std::vector<std::vector<std::string>> found;
    for (const Algorithm& algorithm : node.algorithms) {
      EXPECT_EQ(algorithm.time_s, node.algorithms[0].time_s);
      found.emplace_back();
      for (const int t : algorithm.on_host) found.back().push_back(graph.tensors[t].id);
    }
    const std::string weight = graph.tensors[node.mutates[0]].id;
    EXPECT_THAT(found,
                ElementsAre(ElementsAre(), ElementsAre(weight + ".first", weight + ".second"),
                            ElementsAre(weight, weight + ".first", weight + ".second")));
  }
  EXPECT_EQ(updates, UpdatedAtOnce::kLayers);
}

TEST(HostUpdates, FitWhereNoOtherPlanDoesWithTheSameBits) {
  const Trained expected = train_eagerly();
  Recorded recorded;
  Graph& graph = recorded.graph.graph;
  SolveOptions on_device{.algorithms = false, .least_bytes = 32 * 1024, .time_limit_s = 2};
  SolveOptions options = on_device;
  options.algorithms = true;
  // An update takes its gradient, its weight and two moments; without the moments it is no longer
  // the largest operation.
  const int64_t floor = floor_of(graph, on_device).bytes;
  EXPECT_GE(floor, floor_of(graph, options).bytes + UpdatedAtOnce::kBytes / 2);
  graph.budget_bytes = floor - 1;
  EXPECT_THROW(solve_placed(graph, on_device, PlanCache("")), UserError);
  const Solution made = solve_placed(graph, options, PlanCache("")).solution;
  expect_same_bits(recorded.train_by(made.schedule.plan), expected);

  const PlanOutcome outcome = outcome_of(graph, made.schedule.plan, made.schedule.timeline);
  EXPECT_GE(outcome.on_host_bytes, 2 * UpdatedAtOnce::kLayers * UpdatedAtOnce::kBytes);
  EXPECT_EQ(outcome.algorithms_to_choose, 0);  // only updates on the device have a choice
  EXPECT_NEAR(outcome.expected_s(), made.schedule.expected_s, 1e-9);
  int there = 0;
  for (const OutcomeRow& row : rows_by_fate(outcome, graph))
    if (row.fate == Fate::kOnHost) there = row.storages;
  EXPECT_GE(there, 2 * UpdatedAtOnce::kLayers);
}

TEST(HostUpdates, AreChosenWhereTheyAreFaster) {
  const Trained expected = train_eagerly();
  Recorded recorded, other;
  Graph& graph = recorded.graph.graph;
  SolveOptions on_device{.algorithms = false, .least_bytes = 32 * 1024, .time_limit_s = 2};
  SolveOptions options = on_device;
  options.algorithms = true;
  for (Graph* of :
       {&graph,
        &other.graph.graph}) {  // places depend on times: the plan must see the same times in both
    of->budget_bytes = 10 * UpdatedAtOnce::kBytes;
    for (GraphNode& node : of->nodes)
      for (Algorithm& algorithm : node.algorithms)
        algorithm.time_s = 1e-5;  // less than a copy of a weight
  }
  const Solution moved = solve_placed(graph, on_device, PlanCache("")).solution,
                 there = solve_placed(graph, options, PlanCache("")).solution;
  EXPECT_LT(there.schedule.expected_s, 0.9 * moved.schedule.expected_s);
  EXPECT_EQ(runs_by(graph, moved.schedule.plan, "captured"), static_cast<int>(graph.nodes.size()));
  EXPECT_GT(runs_by(graph, there.schedule.plan, "state on the host") +
                runs_by(graph, there.schedule.plan, "weights and state on the host"),
            0);
  expect_same_bits(recorded.train_by(there.schedule.plan), expected);
  expect_same_bits(other.train_by(moved.schedule.plan), expected);
}

TEST(HostUpdates, OfWeightsThatAreFetchedForForwardGiveTheSameBits) {
  const Trained expected = train_eagerly();
  Recorded recorded;
  Graph& graph = recorded.graph.graph;
  const Scheduler scheduler(graph);
  Decisions decisions{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                      .codec = std::vector<int>(scheduler.gaps().size()),
                      .algorithms = std::vector<int>(graph.nodes.size())};
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].algorithms.size() < 3) continue;
    decisions.algorithms[n] = 2;
    for (const int t : graph.nodes[n].algorithms[2].on_host)
      for (const int g : scheduler.gaps_on_host(static_cast<int>(n), t))
        decisions.gaps[g] = Keep::kHost;
  }
  graph.budget_bytes = keep_all_bytes(graph);
  const auto made = scheduler.schedule(decisions, graph.budget_bytes);
  ASSERT_TRUE(made);
  EXPECT_EQ(std::ssize(made->plan.starts_on_host), 3 * UpdatedAtOnce::kLayers);
  const auto count = [&](Op op) {
    return std::count_if(made->plan.actions.begin(), made->plan.actions.end(),
                         [&](const Action& action) { return action.op == op; });
  };
  EXPECT_EQ(count(Op::kOffload),
            0);  // forward and backward fetch the host copy as it is
  EXPECT_EQ(count(Op::kPrefetch), UpdatedAtOnce::kLayers);
  expect_same_bits(recorded.train_by(made->plan), expected);
}

TEST(HostUpdates, AreNotChosenWhereALaterNodeUsesWhatTheyChange) {
  Graph graph;
  graph.bandwidth = {.to_host = 1e9, .to_device = 1e9};
  graph.tensors = {{.id = "w", .bytes = 1 << 20, .kind = TensorKind::kParam},
                   {.id = "y", .bytes = 1 << 20, .kind = TensorKind::kActivation}};
  const auto update = [](std::string name) {
    return GraphNode{.name = std::move(name),
                     .mutates = {0},
                     .algorithms = {{.name = "device", .time_s = 1},
                                    {.name = "host", .time_s = 1, .on_host = {0}}}};
  };
  graph.nodes = {update("first"),
                 {.name = "read",
                  .inputs = {0},
                  .outputs = {1},
                  .algorithms = {{.name = "only", .time_s = 1}}},
                 {.name = "other", .algorithms = {{.name = "only", .time_s = 1}}},
                 update("last")};
  const Scheduler scheduler(graph);
  EXPECT_FALSE(may_be_chosen(graph, scheduler, 0, 1, {}));
  EXPECT_TRUE(may_be_chosen(graph, scheduler, 3, 1, {}));
  EXPECT_FALSE(may_be_chosen(graph, scheduler, 3, 1, {.offload = false}));
  EXPECT_FALSE(may_be_chosen(graph, scheduler, 3, 1, {.across_steps = false}));
  EXPECT_FALSE(may_be_chosen(graph, scheduler, 3, 1, {.algorithms = false}));
  EXPECT_FALSE(may_be_chosen(graph, scheduler, 3, 1, {.least_bytes = (1 << 20) + 1}));
}

TEST(HostUpdates, TakeAsLongAsTheUpdateThatRan) {
  Recorded recorded;
  Graph& graph = recorded.graph.graph;
  const Plan plan = keep_all(graph);
  for (GraphNode& node : graph.nodes) node.algorithms[0].time_s = 2;
  share_times(graph, plan);
  for (const GraphNode& node : graph.nodes)
    for (const Algorithm& algorithm : node.algorithms) EXPECT_EQ(algorithm.time_s, 2) << node.name;
}

}  // namespace
}  // namespace dovetail::plan::host_updates_test
