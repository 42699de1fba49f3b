#include "dovetail/plan/executor.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/plan/capture.h"
#include "dovetail/plan/profile.h"
#include "tests/base/temporary_folder.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/small_step.h"

namespace dovetail::plan {
namespace {

constexpr int kSteps = 20;

struct Trained {
  std::vector<at::Tensor> losses, values;
};

Trained eager(SmallStep& step) {
  Trained out;
  at::manual_seed(5);
  for (int i = 0; i < kSteps; ++i) {
    step.new_batch(i);
    out.losses.push_back(step()[0].clone());
  }
  out.values = step.values();
  return out;
}

void expect_same_bits(const Trained& a, const Trained& b) {
  for (int i = 0; i < kSteps; ++i) EXPECT_TRUE(a.losses[i].equal(b.losses[i])) << "loss of step " << i;
  for (size_t i = 0; i < a.values.size(); ++i) EXPECT_TRUE(a.values[i].equal(b.values[i])) << "tensor " << i;
}

/// Where in the graph a storage is made, and where it is read last before the backward pass and first in it.
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

class ExecutedPlan : public testing::Test {
 protected:
  ExecutedPlan() {
    reference_ = eager(eager_step_);
    step_();
    captured_ = capture([&] { return step_(); }, step_.tensors());
    graph_ = graph_of(captured_);
    graph_.graph.budget_bytes = int64_t{1} << 40;
    graph_.graph.bandwidth = {.to_host = 1e9, .to_device = 1e9};
    for (GraphNode& node : graph_.graph.nodes) node.algorithms[0].time_s = 1e-4;
    plan_ = keep_all(graph_.graph);
    std::erase_if(plan_.actions, [&](const Action& action) {  // results stay
      return action.op == Op::kFree && std::count(graph_.graph.final.begin(), graph_.graph.final.end(), action.tensor);
    });
  }

  int position_of(int node) const {
    const auto found = std::find_if(plan_.actions.begin(), plan_.actions.end(),
                                    [&](const Action& a) { return a.op == Op::kCompute && a.node == node; });
    return static_cast<int>(found - plan_.actions.begin());
  }
  void insert(int at, Action action) { plan_.actions.insert(plan_.actions.begin() + at, std::move(action)); }

  /// Trains as `eager` does, from the same values.
  Trained train(const std::filesystem::path& folder = {}) {
    const SmallStep fresh;
    const auto start = fresh.values();
    size_t i = 0;
    const auto tensors = step_.tensors();
    for (const auto* list : {&tensors.parameters, &tensors.state})
      for (const auto& [name, tensor] : *list) tensor.detach().copy_(start[i++]);
    Trained out;
    {
      Executor executor(captured_, graph_, plan_, {.folder = folder});
      EXPECT_LE(executor.arena_bytes(), graph_.graph.budget_bytes);
      peak_bytes_ = executor.predicted().peak_bytes;
      arena_bytes_ = executor.arena_bytes();
      at::manual_seed(5);
      for (int s = 0; s < kSteps; ++s) {
        step_.new_batch(s);
        executor.run();
        out.losses.push_back(executor.results()[0].clone());
      }
    }
    out.values = step_.values();
    return out;
  }

  SmallStep eager_step_, step_;
  Trained reference_;
  CapturedStep captured_;
  StepGraph graph_;
  Plan plan_;
  int64_t peak_bytes_ = 0, arena_bytes_ = 0;
};

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
    // One by one, so that the inputs of what runs again are there: only what the step itself keeps.
    const bool inputs_stay = std::all_of(maker.inputs.begin(), maker.inputs.end(), [&](int t) {
      return graph_.graph.tensors[t].kind != TensorKind::kActivation;
    });
    if (maker.runs_once() || maker.outputs.size() != 1 || (!inputs_stay && !maker.random)) continue;
    ++again;
    random += maker.random ? 1 : 0;
    insert(position_of(gap.needed_by), {.op = Op::kCompute, .node = gap.maker});
    insert(position_of(gap.leaves_after) + 1, {.op = Op::kFree, .tensor = gap.tensor});
    if (maker.random)  // its inputs are kept to the end
      for (const int t : maker.inputs) {
        const auto freed = std::find_if(plan_.actions.begin(), plan_.actions.end(),
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

TEST_F(ExecutedPlan, AnotherShapeIsAnError) {
  graph_.nodes[0].places[0][0].bytes += 4;
  Executor executor(captured_, graph_, plan_, {});
  EXPECT_THAT([&] { executor.run(); },
              testing::ThrowsMessage<UserError>(testing::HasSubstr("its shapes are not those of the captured step")));
  EXPECT_THAT([&] { executor.run(); }, testing::ThrowsMessage<UserError>(testing::HasSubstr("cannot go on")));
}

}  // namespace
}  // namespace dovetail::plan
