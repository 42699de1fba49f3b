#include "dovetail/plan/baselines/swapping.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace dovetail::plan::swapping_test {
namespace {

using Ids = std::set<std::string>;

/// Six layers, convolutions and activations in turn. Backward of a layer reads its input and its
/// output. Convolutions and backward take 1 s, activation functions 0.5 s; a tensor has 8 bytes.
Graph six_layers(double copy_s) {
  constexpr int kLayers = 6;
  Graph graph;
  graph.bandwidth = {.to_host = 8 / copy_s, .to_device = 8 / copy_s};
  graph.tensors.push_back({.id = "x", .bytes = 8, .kind = TensorKind::kInput});
  for (int i = 0; i < kLayers; ++i) {
    graph.tensors.push_back({.id = fmt::format("a{}", i), .bytes = 8});
    graph.nodes.push_back({.name = i % 2 == 0 ? "aten::convolution" : "aten::relu",
                           .inputs = {i},
                           .outputs = {i + 1},
                           .algorithms = {{"only", i % 2 == 0 ? 1.0 : 0.5, 0}}});
  }
  for (int i = kLayers - 1; i >= 0; --i) {
    const int made = static_cast<int>(graph.tensors.size());
    graph.tensors.push_back({.id = fmt::format("g{}", i), .bytes = 8, .kind = TensorKind::kGrad});
    GraphNode node{.name = "backward",
                   .inputs = {i, i + 1},
                   .outputs = {made},
                   .algorithms = {{"only", 1, 0}}};
    if (i + 1 < kLayers) node.inputs.push_back(made - 1);
    graph.nodes.push_back(std::move(node));
  }
  graph.budget_bytes = kNoBudget;
  graph.budget_bytes = check(graph, keep_all(graph)).peak_bytes;
  return graph;
}

/// Tensors that a plan moves to the host, and tensors that it recomputes.
std::pair<Ids, Ids> treated(const Graph& graph, const Plan& plan) {
  std::pair<Ids, Ids> out;
  std::set<int> ran;
  for (const Action& action : plan.actions) {
    if (action.op == Op::kOffload) out.first.insert(graph.tensors[action.tensor].id);
    if (action.op == Op::kCompute && !ran.insert(action.node).second)
      out.second.insert(graph.tensors[graph.nodes[action.node].outputs[0]].id);
  }
  return out;
}

/// Results of a strategy at the peak, and at budgets that are smaller by one tensor each.
std::vector<std::pair<Ids, Ids>> treated_as_budgets_fall(Graph graph,
                                                         Baseline (*strategy)(const Graph&),
                                                         int budgets) {
  std::vector<std::pair<Ids, Ids>> out;
  for (int i = 0; i < budgets; ++i, graph.budget_bytes -= 8) {
    const Baseline made = strategy(graph);
    if (!made.plan) break;
    EXPECT_DOUBLE_EQ(check(graph, *made.plan).makespan_s, made.time_s);
    out.push_back(treated(graph, *made.plan));
  }
  return out;
}

TEST(Vdnn, MovesInputsOfConvolutionsAndThenOfAllLayers) {
  using Sets = std::pair<Ids, Ids>;
  // Slow copies: moving more than necessary takes longer.
  EXPECT_THAT(treated_as_budgets_fall(six_layers(2), vdnn, 4),
              ::testing::ElementsAre(Sets({}, {}), Sets({"a1", "a3"}, {}),
                                     Sets({"a0", "a1", "a2", "a3"}, {}),
                                     Sets({"a0", "a1", "a2", "a3"}, {})));
}

TEST(SuperNeurons, MovesConvolutionsAndRecomputesTheRestFromTheFirstLayerOn) {
  using Sets = std::pair<Ids, Ids>;
  EXPECT_THAT(treated_as_budgets_fall(six_layers(0.1), superneurons, 4),
              ::testing::ElementsAre(Sets({}, {}), Sets({"a0"}, {}), Sets({"a0"}, {"a1"}),
                                     Sets({"a0", "a2"}, {"a1"})));
}

TEST(Capuchin, SwapsByFreeTimeAndThenTakesTheCheaperOfBoth) {
  using Sets = std::pair<Ids, Ids>;
  // Forward ends at 4.5 s. a0 is unused from 1.5 to 8.5 s, a1 from 2.5 to 7.5, a2 from 3 to 6.5, a3
  // from 4 to 5.5. With copies of 2.1 s, the free times are 2.8, 0.8, -0.7 and -2.7 s. So a2
  // would delay the step by 0.7 s. Recomputing a3 takes 0.5 s and has the most bytes per second.
  // This saves no memory where a2 is needed. The next choice is a2: recomputing it takes 1 s.
  EXPECT_THAT(treated_as_budgets_fall(six_layers(2.1), capuchin, 4),
              ::testing::ElementsAre(Sets({}, {}), Sets({"a0"}, {}), Sets({"a0", "a1"}, {}),
                                     Sets({"a0", "a1", "a2"}, {"a3"})));
}

TEST(WithAuto, SchedulesAgainWithTheAlgorithmsThatAutoChose) {
  // The first layer has a fast algorithm, and there is room for its workspace.
  Graph graph = six_layers(2.1);
  graph.nodes[0].algorithms = {{"slow", 3, 0}, {"fast", 1, 8}};
  Decisions kept{.gaps = std::vector<Keep>(find_gaps(graph).size(), Keep::kResident),
                 .codec = std::vector<int>(find_gaps(graph).size()),
                 .algorithms = std::vector<int>(graph.nodes.size())};
  const auto plan = with_auto(graph, kept);
  ASSERT_TRUE(plan);
  EXPECT_DOUBLE_EQ(check(graph, *plan).makespan_s, 10.5);
  graph.budget_bytes = 16;
  EXPECT_FALSE(with_auto(graph, kept));
}

}  // namespace
}  // namespace dovetail::plan::swapping_test
