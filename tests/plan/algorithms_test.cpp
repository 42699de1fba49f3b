#include "dovetail/plan/record/algorithms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/ops/convolution.h"
#include "dovetail/plan/model/check.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/solve/solve.h"
#include "tests/ops/testing.h"
#include "tests/plan/conv_step.h"

namespace dovetail::plan::algorithms_test {
namespace {

constexpr int kSteps = 20;
// Uses every algorithm at least once. The last two layers have stride 2 and 1 x 1 kernels, which
// Winograd does not support. The first layer needs only the gradients of weight and bias.
const ConvStep::Algorithms kMixed = {{{"im2col", "im2col"},
                                      {"winograd", "winograd, aten"},
                                      {"im2col", "im2col, im2col"},
                                      {"aten", "aten, im2col"}}};
const ConvStep::Algorithms kOthers = {{{"winograd", "aten"},
                                       {"im2col", "winograd, im2col"},
                                       {"aten", "im2col, aten"},
                                       {"im2col", "aten"}}};

struct Trained {
  std::vector<at::Tensor> losses, values;
};

Trained train(ConvStep& step, const std::function<at::Tensor()>& run) {
  step.set(ConvStep().values());
  Trained out;
  for (int i = 0; i < kSteps; ++i) {
    step.new_batch(i);
    out.losses.push_back(run().clone());
  }
  out.values = step.values();
  return out;
}

bool same_bits(const Trained& a, const Trained& b) {
  const auto equal = [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); };
  return std::equal(a.losses.begin(), a.losses.end(), b.losses.begin(), equal) &&
         std::equal(a.values.begin(), a.values.end(), b.values.begin(), equal);
}

class Algorithms : public ::testing::Test {
 protected:
  Algorithms() {
    step_();
    record(LaterSteps::kReplayed);
  }
  void record(LaterSteps later) {
    forward_.clear();
    backward_.clear();
    captured_ = capture([&] { return step_(); }, step_.tensors(), later);
    graph_ = graph_of(captured_);
    ProfileCache none(std::filesystem::path{});
    add_convolution_algorithms(captured_, graph_, none);
    graph_.graph.budget_bytes = int64_t{1} << 40;
    graph_.graph.bandwidth = {.to_host = 1e10, .to_device = 1e10};
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const std::string& name = captured_.operations[graph_.nodes[n].first].name;
      if (name == "aten::convolution") forward_.push_back(static_cast<int>(n));
      if (name == "aten::convolution_backward")
        backward_.insert(backward_.begin(), static_cast<int>(n));
    }
  }

  std::vector<std::string> names(int node) const {
    std::vector<std::string> out;
    for (const Algorithm& algorithm : graph_.graph.nodes[node].algorithms)
      out.push_back(algorithm.name);
    return out;
  }
  int index(int node, const std::string& name) const {
    const auto all = names(node);
    const auto found = std::find(all.begin(), all.end(), name);
    EXPECT_TRUE(found != all.end()) << name;
    return static_cast<int>(found - all.begin());
  }
  /// Returns the index of the algorithm that each node runs by.
  std::vector<int> chosen(const ConvStep::Algorithms& by) const {
    std::vector<int> out(graph_.nodes.size());
    for (int i = 0; i < ConvStep::kLayers; ++i) {
      out[forward_[i]] = index(forward_[i], by[i].forward);
      out[backward_[i]] = index(backward_[i], by[i].backward);
    }
    return out;
  }
  Plan keep_all_by(const ConvStep::Algorithms& by) const {
    Plan plan = keep_all(graph_.graph);
    const auto algorithms = chosen(by);
    for (Action& action : plan.actions)
      if (action.op == Op::kCompute) action.algorithm = algorithms[action.node];
    return plan;
  }
  static int position_of(const Plan& plan, int node) {
    const auto found = std::find_if(plan.actions.begin(), plan.actions.end(), [&](const Action& a) {
      return a.op == Op::kCompute && a.node == node;
    });
    return static_cast<int>(found - plan.actions.begin());
  }
  static void insert(Plan& plan, int at, const std::vector<Action>& actions) {
    plan.actions.insert(plan.actions.begin() + at, actions.begin(), actions.end());
  }
  Trained execute(const Plan& plan) {
    Executor executor(captured_, graph_, plan, {});
    return train(step_, [&] {
      executor.run();
      return executor.results()[0];
    });
  }

  const dovetail::testing::Threads one_{1};
  ConvStep step_;
  CapturedStep captured_;
  StepGraph graph_;
  std::vector<int> forward_, backward_;  // nodes, by layer
};

TEST_F(Algorithms, AreThoseThatApply) {
  using ::testing::ElementsAre;
  ASSERT_EQ(forward_.size(), ConvStep::kLayers);
  ASSERT_EQ(backward_.size(), ConvStep::kLayers);
  EXPECT_THAT(names(forward_[0]), ElementsAre("aten", "im2col", "winograd"));
  EXPECT_THAT(names(backward_[0]), ElementsAre("aten", "im2col"));
  EXPECT_THAT(names(forward_[1]), ElementsAre("aten", "im2col", "winograd"));
  EXPECT_THAT(names(backward_[1]),
              ElementsAre("aten", "aten, im2col", "im2col, aten", "im2col, im2col",
                          "winograd, aten", "winograd, im2col"));
  for (const int layer : {2, 3}) {
    EXPECT_THAT(names(forward_[layer]), ElementsAre("aten", "im2col"));
    EXPECT_THAT(names(backward_[layer]),
                ElementsAre("aten", "aten, im2col", "im2col, aten", "im2col, im2col"));
  }
}

TEST_F(Algorithms, TakeTheWorkspaceThatTheKernelsSay) {
  const auto expected = [](const char* algorithm) {
    return planned_bytes(ops::convolution_workspace_bytes(
        ops::ConvolutionPass::kForward, {8, 16, 24, 24}, {24, 16, 3, 3},
        {.stride = {1, 1}, .padding = {1, 1}, .algorithm = ops::convolution_algorithm(algorithm)}));
  };
  for (const char* algorithm : {"im2col", "winograd"})
    EXPECT_EQ(
        graph_.graph.nodes[forward_[1]].algorithms[index(forward_[1], algorithm)].workspace_bytes,
        expected(algorithm));
}

TEST_F(Algorithms, AStepByThemIsEagerTrainingByThemBitForBit) {
  const Trained captured = execute(keep_all(graph_.graph));
  ConvStep eager;
  EXPECT_TRUE(same_bits(captured, train(eager, [&] { return eager()[0]; })));
  for (const auto& by : {kMixed, kOthers}) {
    const Trained executed = execute(keep_all_by(by));
    EXPECT_TRUE(same_bits(executed, train(eager, [&] { return eager(&by)[0]; })));
    // The executed step differs from the captured one by rounding.
    EXPECT_FALSE(same_bits(executed, captured));
    for (int i = 0; i < kSteps; ++i)
      EXPECT_NEAR(executed.losses[i].item<double>(), captured.losses[i].item<double>(), 1e-4)
          << "step " << i;
    for (size_t i = 0; i < executed.values.size(); ++i)
      EXPECT_LT((executed.values[i] - captured.values[i]).norm().item<double>(),
                1e-3 * captured.values[i].norm().item<double>() + 1e-6)
          << "tensor " << i;
  }
}

TEST_F(Algorithms, WhatRunsAgainOrWasAwayHasTheBitsOfKeepingAllByThem) {
  for (const auto& by : {kMixed, kOthers}) {
    Plan plan = keep_all_by(by);
    const Trained reference = execute(plan);
    // The output of the first layer is recomputed for backward of the second layer. The input of
    // the third layer is offloaded until its own backward.
    const int made = graph_.graph.nodes[forward_[0]].outputs[0];
    const auto& inputs = graph_.graph.nodes[forward_[2]].inputs;
    const int moved = *std::find_if(inputs.begin(), inputs.end(), [&](int t) {
      return graph_.graph.tensors[t].kind == TensorKind::kActivation;
    });
    const Action again{
        .op = Op::kCompute, .node = forward_[0], .algorithm = chosen(by)[forward_[0]]};
    insert(plan, position_of(plan, backward_[1]), {again});
    insert(plan, position_of(plan, backward_[2]), {{.op = Op::kFreeHost, .tensor = moved}});
    insert(plan, position_of(plan, backward_[2]) - 2, {{.op = Op::kPrefetch, .tensor = moved}});
    insert(plan, position_of(plan, forward_[2]) + 1,
           {{.op = Op::kOffload, .tensor = moved}, {.op = Op::kFree, .tensor = moved}});
    insert(plan, position_of(plan, forward_[1]) + 1, {{.op = Op::kFree, .tensor = made}});
    EXPECT_EQ(check(graph_.graph, plan).again, 1);
    EXPECT_TRUE(same_bits(execute(plan), reference));
  }
}

TEST_F(Algorithms, ACalledStepHasTheBitsOfEagerTrainingByThem) {
  record(LaterSteps::kCalled);
  for (const auto& by : {kMixed, kOthers}) {
    Plan plan = keep_all_by(by);
    const int made = graph_.graph.nodes[forward_[0]].outputs[0];
    insert(plan, position_of(plan, backward_[1]),
           {{.op = Op::kCompute, .node = forward_[0], .algorithm = chosen(by)[forward_[0]]}});
    insert(plan, position_of(plan, forward_[1]) + 1, {{.op = Op::kFree, .tensor = made}});
    Trained called;
    {
      Executor executor(captured_, graph_, plan, {});
      called = train(step_, [&] {
        at::Tensor loss;
        executor.run([&] { loss = step_()[0]; }, {.writes = true});
        return loss;
      });
    }
    ConvStep eager;
    EXPECT_TRUE(same_bits(called, train(eager, [&] { return eager(&by)[0]; })));
  }
}

TEST_F(Algorithms, BeyondTheGivenBytesAreLeftOut) {
  const auto workspaces = [&](int64_t most_bytes) {
    StepGraph graph = graph_of(captured_);
    ProfileCache none(std::filesystem::path{});
    add_convolution_algorithms(captured_, graph, none, most_bytes);
    return graph.graph.nodes[forward_[1]].algorithms.size();
  };
  const GraphNode& node = graph_.graph.nodes[forward_[1]];
  int64_t operands = 0, least = std::numeric_limits<int64_t>::max();
  for (const auto* list : {&node.inputs, &node.outputs})
    for (const int t : *list) operands += graph_.graph.tensors[t].bytes;
  for (const char* name : {"im2col", "winograd"})
    least = std::min(least, node.algorithms[index(forward_[1], name)].workspace_bytes);
  EXPECT_EQ(workspaces(operands + least / 2), 1);
  EXPECT_EQ(workspaces(operands + least), 2);
  EXPECT_EQ(workspaces(int64_t{1} << 40), 3);
}

TEST_F(Algorithms, AreTimedOnZeros) {
  StepGraph graph = graph_of(captured_);
  ProfileCache cache(std::filesystem::path{});
  add_convolution_algorithms(captured_, graph, cache);
  time_on_zeros(captured_, graph, cache);
  for (const int n : forward_)
    for (const Algorithm& algorithm : graph.graph.nodes[n].algorithms)
      EXPECT_GT(algorithm.time_s, 0) << algorithm.name;
  // A later call finds the times in the cache: it runs nothing.
  StepGraph again = graph_of(captured_);
  add_convolution_algorithms(captured_, again, cache);
  time_on_zeros(captured_, again, cache);
  EXPECT_EQ(again.graph.nodes[forward_[1]].algorithms[1].time_s,
            graph.graph.nodes[forward_[1]].algorithms[1].time_s);
}

TEST_F(Algorithms, ThatAreWorseThanAnotherAreDropped) {
  // "aten" is the slowest, but stays. The first of equal ones stays. 1e9 s: it cannot run.
  struct Given {
    double time_s;
    int64_t workspace_bytes;
  };
  const std::vector<Given> given = {{9, 10}, {5, 100}, {4, 200}, {5, 150}, {4, 200}, {1e9, 0}};
  StepGraph graph;
  auto& algorithms = graph.graph.nodes.emplace_back().algorithms;
  auto& variants = graph.nodes.emplace_back().variants;
  for (size_t i = 0; i < given.size(); ++i) {
    algorithms.push_back({std::to_string(i), given[i].time_s, given[i].workspace_bytes});
    if (i > 0) variants.push_back({.memory = {.workspace_bytes = given[i].workspace_bytes}});
  }
  drop_dominated(graph);
  std::vector<std::string> left;
  for (const Algorithm& algorithm : algorithms) left.push_back(algorithm.name);
  EXPECT_EQ(left, (std::vector<std::string>{"0", "1", "2"}));
  ASSERT_EQ(variants.size(), 2u);
  for (size_t i = 0; i < variants.size(); ++i)
    EXPECT_EQ(variants[i].memory.workspace_bytes, algorithms[i + 1].workspace_bytes);
}

TEST_F(Algorithms, AreChosenByMemoryToo) {
  for (GraphNode& node : graph_.graph.nodes)
    for (Algorithm& algorithm : node.algorithms)
      algorithm.time_s = algorithm.name.starts_with("winograd") ? 5e-5 : 1e-4;
  const auto by_winograd = [&](const std::vector<int>& algorithms) {
    int out = 0;
    for (size_t n = 0; n < algorithms.size(); ++n)
      out += graph_.graph.nodes[n].algorithms[algorithms[n]].name.starts_with("winograd") ? 1 : 0;
    return out;
  };
  const SolveOptions options{.compress = false, .least_bytes = kPagedBytes, .time_limit_s = 1};
  const Solution rich = solve(graph_.graph, options);
  EXPECT_EQ(by_winograd(rich.decisions.algorithms), 3);
  // The budget is too small for its workspace, even with everything else offloaded.
  graph_.graph.budget_bytes = floor_of(graph_.graph, options).bytes * 11 / 10;
  const Solution poor = solve(graph_.graph, options);
  EXPECT_LT(by_winograd(poor.decisions.algorithms), 3);
  graph_.graph.budget_bytes = int64_t{1} << 40;
  for (const Solution& solution : {rich, poor}) {
    Plan kept = keep_all(graph_.graph);
    for (Action& action : kept.actions)
      if (action.op == Op::kCompute) action.algorithm = solution.decisions.algorithms[action.node];
    EXPECT_TRUE(same_bits(execute(solution.schedule.plan), execute(kept)));
  }
}

TEST_F(Algorithms, ANodeRunsAgainByTheSame) {
  Plan plan = keep_all(graph_.graph);
  const auto at = std::find_if(plan.actions.begin(), plan.actions.end(), [&](const Action& a) {
    return a.op == Op::kCompute && a.node == forward_[1];
  });
  const int output = graph_.graph.nodes[forward_[1]].outputs[0];
  plan.actions.insert(at + 1, {{.op = Op::kFree, .tensor = output},
                               {.op = Op::kCompute, .node = forward_[1], .algorithm = 1}});
  EXPECT_THAT([&] { Executor(captured_, graph_, plan, {}); },
              ::testing::ThrowsMessage<InvalidPlan>(
                  ::testing::HasSubstr("runs by \"aten\" and again by \"im2col\"")));
  Executor(captured_, graph_, plan, {.mixed_algorithms = true}).run();
}

}  // namespace
}  // namespace dovetail::plan::algorithms_test
