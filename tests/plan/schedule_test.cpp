#include "dovetail/plan/model/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/plan/run/profile.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan::schedule_test {
namespace {

Decisions all_resident(const Graph& graph, const Scheduler& scheduler) {
  return {.gaps = std::vector<Keep>(scheduler.gaps().size()),
          .codec = std::vector<int>(scheduler.gaps().size()),
          .algorithms = std::vector<int>(graph.nodes.size())};
}

TEST(Schedule, KeepingAllIsEveryNodeOnce) {
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    const Graph graph = random_step(random, draw(random, 1, 6));
    const Scheduler scheduler(graph);
    const auto made = scheduler.schedule(all_resident(graph, scheduler), graph.budget_bytes);
    ASSERT_TRUE(made);
    const Timeline plain = check(graph, keep_all(graph));
    EXPECT_EQ(made->timeline.peak_bytes, plain.peak_bytes);
    EXPECT_DOUBLE_EQ(made->timeline.makespan_s, plain.makespan_s);
    EXPECT_EQ(made->timeline.again, 0);
    EXPECT_EQ(*std::max_element(made->slot_bytes.begin(), made->slot_bytes.end()),
              plain.peak_bytes);
    EXPECT_TRUE(scheduler.schedule(all_resident(graph, scheduler), plain.peak_bytes));
    Misfit misfit;
    EXPECT_FALSE(scheduler.schedule(all_resident(graph, scheduler), plain.peak_bytes - 1, &misfit));
    EXPECT_EQ(misfit.bytes, 1);
  }
}

/// Chain of nodes with these durations in seconds, over tensors of 8 and 16 bytes. Bandwidth: 10
/// bytes per second to the host, 8 back.
Graph chain(std::vector<GraphTensor> tensors, std::vector<GraphNode> nodes,
            const std::vector<double>& seconds) {
  Graph graph{
      .budget_bytes = int64_t{1} << 40, .tensors = std::move(tensors), .nodes = std::move(nodes)};
  graph.bandwidth = {.to_host = 10, .to_device = 8};
  for (size_t n = 0; n < seconds.size(); ++n) graph.nodes[n].algorithms = {{"only", seconds[n], 0}};
  return graph;
}

TEST(Schedule, AGapThatWrapsIsFetchedInTimeAndWrittenBackBeforeTheStepEnds) {
  const std::vector<GraphTensor> tensors = {{.id = "x", .bytes = 8, .kind = TensorKind::kInput},
                                            {.id = "w", .bytes = 8, .kind = TensorKind::kParam},
                                            {.id = "v", .bytes = 8, .kind = TensorKind::kState},
                                            {.id = "a", .bytes = 8},
                                            {.id = "b", .bytes = 8},
                                            {.id = "g", .bytes = 8}};
  const GraphNode f1{.name = "f1", .inputs = {0}, .outputs = {3}};
  const GraphNode f2{.name = "f2", .inputs = {3, 1}, .outputs = {4}};
  const GraphNode b2{.name = "b2", .inputs = {4}, .outputs = {5}};
  const GraphNode u2{.name = "u2", .inputs = {5}, .mutates = {1}};
  const GraphNode f0{.name = "f0", .inputs = {0, 2}};
  const auto ends = [&](const std::vector<GraphNode>& nodes, const std::vector<double>& seconds,
                        int64_t peak) {
    Graph graph = chain(tensors, nodes, seconds);
    graph.final = {1, 2};
    const Scheduler scheduler(graph);
    Decisions decisions = all_resident(graph, scheduler);
    EXPECT_GE(scheduler.wrapped_gap(1), 0);
    EXPECT_LT(scheduler.wrapped_gap(0), 0);
    decisions.gaps[scheduler.wrapped_gap(1)] = Keep::kHost;
    const auto made = scheduler.schedule(decisions, peak);
    EXPECT_TRUE(made);
    if (!made) return 0.0;
    EXPECT_THAT(made->plan.starts_on_host, ::testing::ElementsAre(1));
    EXPECT_EQ(made->timeline.peak_bytes, peak);
    EXPECT_FALSE(scheduler.schedule(decisions, peak - 1));
    return made->timeline.makespan_s;
  };
  // The fetch runs during f1 (0 to 1 s of its 2 s), the write back during f0 from 5 to 5.8 s.
  EXPECT_DOUBLE_EQ(ends({f1, f2, b2, u2, f0}, {2, 1, 1, 1, 2}, 40), 7);
  // The write back after the last node ends the step.
  EXPECT_DOUBLE_EQ(ends({f0, f1, f2, b2, u2}, {2, 2, 1, 1, 1}, 40), 7.8);
  // If the first node needs the tensor, it waits.
  const GraphNode at_once{.name = "f", .inputs = {0, 1}, .outputs = {4}};
  EXPECT_DOUBLE_EQ(ends({at_once, b2, u2, f0}, {1, 1, 1, 2}, 40), 6);
}

// f makes a and b. b is changed before a is needed a second time.
TEST(Schedule, ANodeDoesNotRunAgainOnceAnotherOfItsOutputsHasChanged) {
  Graph graph = chain({{.id = "x", .bytes = 8, .kind = TensorKind::kInput},
                       {.id = "a", .bytes = 8},
                       {.id = "b", .bytes = 8},
                       {.id = "c", .bytes = 8}},
                      {{.name = "f", .inputs = {0}, .outputs = {1, 2}},
                       {.name = "scale", .mutates = {2}},
                       {.name = "g", .inputs = {2}, .outputs = {3}},
                       {.name = "h", .inputs = {1, 2, 3}}},
                      {1, 1, 1, 1});
  const auto ask = [&](int gap_to) {
    const Scheduler scheduler(graph);
    Decisions decisions = all_resident(graph, scheduler);
    for (size_t g = 0; g < scheduler.gaps().size(); ++g) {
      if (scheduler.gaps()[g].tensor != 1) continue;
      EXPECT_EQ(scheduler.gaps()[g].to, gap_to);
      decisions.gaps[g] = Keep::kAgain;
      return std::pair(scheduler.can_be_recomputed(static_cast<int>(g)),
                       scheduler.schedule(decisions, graph.budget_bytes).has_value());
    }
    return std::pair(false, false);
  };
  EXPECT_EQ(ask(3), std::pair(false, false));
  std::swap(graph.nodes[1], graph.nodes[2]);  // changed later, but still before
  EXPECT_EQ(ask(3), std::pair(false, false));
  graph.nodes[2].mutates = {3};
  graph.nodes[1].name = "k";
  EXPECT_EQ(ask(3), std::pair(true, true));
}

// a1 is recomputed from a0. a0 is fetched for this, not only for the next node.
TEST(Schedule, AFetchIsInTimeForWhatIsMadeAgainFromIt) {
  Graph graph = chain({{.id = "x", .bytes = 8, .kind = TensorKind::kInput},
                       {.id = "a0", .bytes = 16},
                       {.id = "a1", .bytes = 8},
                       {.id = "a2", .bytes = 8},
                       {.id = "g2", .bytes = 8},
                       {.id = "g1", .bytes = 8},
                       {.id = "g0", .bytes = 8}},
                      {{.name = "f0", .inputs = {0}, .outputs = {1}},
                       {.name = "f1", .inputs = {1}, .outputs = {2}},
                       {.name = "f2", .inputs = {2}, .outputs = {3}},
                       {.name = "b2", .inputs = {3}, .outputs = {4}},
                       {.name = "b1", .inputs = {2, 4}, .outputs = {5}},
                       {.name = "b0", .inputs = {1, 5}, .outputs = {6}}},
                      {1, 1, 4, 4, 4, 1});
  const Scheduler scheduler(graph);
  Decisions decisions = all_resident(graph, scheduler);
  for (size_t g = 0; g < decisions.gaps.size(); ++g)
    decisions.gaps[g] = scheduler.gaps()[g].tensor == 1 ? Keep::kHost : Keep::kAgain;
  const auto made = scheduler.schedule(decisions, graph.budget_bytes);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->timeline.again, 1);
  EXPECT_DOUBLE_EQ(made->timeline.makespan_s, 16);  // every node, and f1 again
}

// a0 is offloaded once and packed twice. Its host copy stays valid, but a packed form serves only
// one gap.
TEST(Schedule, WhatWasOnTheHostBeforeIsPackedAnewForEachGap) {
  Graph graph = chain({{.id = "x", .bytes = 8, .kind = TensorKind::kInput},
                       {.id = "a0", .bytes = 16},
                       {.id = "a1", .bytes = 8},
                       {.id = "a2", .bytes = 8},
                       {.id = "a3", .bytes = 8},
                       {.id = "a4", .bytes = 8},
                       {.id = "a5", .bytes = 8},
                       {.id = "a6", .bytes = 8}},
                      {{.name = "f0", .inputs = {0}, .outputs = {1}},
                       {.name = "f1", .inputs = {0}, .outputs = {2}},
                       {.name = "f2", .inputs = {1, 2}, .outputs = {3}},
                       {.name = "f3", .inputs = {3}, .outputs = {4}},
                       {.name = "f4", .inputs = {1, 4}, .outputs = {5}},
                       {.name = "f5", .inputs = {5}, .outputs = {6}},
                       {.name = "f6", .inputs = {1, 6}, .outputs = {7}}},
                      {4, 4, 4, 4, 4, 4, 4});
  graph.codecs = {{"exact", 0.5, 16, 16, 0}};
  const Scheduler scheduler(graph);
  Decisions decisions = all_resident(graph, scheduler);
  int gaps = 0;
  for (size_t g = 0; g < decisions.gaps.size(); ++g)
    if (scheduler.gaps()[g].tensor == 1)
      decisions.gaps[g] = gaps++ == 0 ? Keep::kHost : Keep::kPacked;
  ASSERT_EQ(gaps, 3);
  const auto made = scheduler.schedule(decisions, graph.budget_bytes);
  ASSERT_TRUE(made);
  std::vector<Op> forms;
  for (const Action& action : made->plan.actions)
    if (action.tensor == 1 && action.op != Op::kFree) forms.push_back(action.op);
  EXPECT_THAT(forms, ::testing::ElementsAre(Op::kOffload, Op::kPrefetch, Op::kCompress,
                                            Op::kDecompress, Op::kFreePacked, Op::kCompress,
                                            Op::kDecompress, Op::kFreePacked, Op::kFreeHost));
}

// a0 waits packed. It is recomputed before it is unpacked, since the same node recomputes b0.
TEST(Schedule, APackedFormGoesOnceItsTensorIsMadeAgainForGood) {
  Graph graph = chain({{.id = "x", .bytes = 8, .kind = TensorKind::kInput},
                       {.id = "b0", .bytes = 8},
                       {.id = "a0", .bytes = 16},
                       {.id = "a1", .bytes = 8},
                       {.id = "a2", .bytes = 8},
                       {.id = "a3", .bytes = 8},
                       {.id = "a4", .bytes = 8}},
                      {{.name = "f0", .inputs = {0}, .outputs = {1, 2}},
                       {.name = "f1", .inputs = {0}, .outputs = {3}},
                       {.name = "f2", .inputs = {1, 2, 3}, .outputs = {4}},
                       {.name = "f3", .inputs = {4}, .outputs = {5}},
                       {.name = "f4", .inputs = {2, 5}, .outputs = {6}}},
                      {1, 1, 1, 1, 1});
  graph.codecs = {{"exact", 0.5, 16, 16, 0}};
  const Scheduler scheduler(graph);
  Decisions decisions = all_resident(graph, scheduler);
  for (size_t g = 0; g < decisions.gaps.size(); ++g) {
    if (scheduler.gaps()[g].tensor == 1) decisions.gaps[g] = Keep::kAgain;
    if (scheduler.gaps()[g].tensor == 2) decisions.gaps[g] = Keep::kPacked;
  }
  const auto made = scheduler.schedule(decisions, graph.budget_bytes);
  ASSERT_TRUE(made);
  std::vector<Op> forms;
  for (const Action& action : made->plan.actions)
    if (action.tensor == 2 && action.op != Op::kFree) forms.push_back(action.op);
  EXPECT_THAT(forms, ::testing::ElementsAre(Op::kCompress, Op::kFreePacked, Op::kCompress,
                                            Op::kDecompress, Op::kFreePacked));
}

// Any decisions give a plan that check accepts, with a smaller peak if memory is given up.
// Otherwise they give a misfit with a reason.
TEST(Schedule, AnyDecisionsGiveAPlanThatIsValid) {
  Random random(4), of_codecs(5);
  int made_plans = 0, smaller = 0, refused = 0, across = 0;
  for (int round = 0; round < 4000; ++round) {
    Graph graph = random_step(random, draw(random, 2, 6));
    if (round % 2 == 0) add_state(random, graph);
    if (round % 4 == 1) restrict_codecs(of_codecs, graph);
    const Scheduler scheduler(graph);
    Decisions decisions = all_resident(graph, scheduler);
    for (int& algorithm : decisions.algorithms)
      algorithm =
          draw(random, 0,
               static_cast<int>(
                   graph.nodes[&algorithm - decisions.algorithms.data()].algorithms.size()) -
                   1);
    const auto kept = scheduler.schedule(decisions, graph.budget_bytes);
    ASSERT_TRUE(kept);
    for (size_t g = 0; g < decisions.gaps.size(); ++g) {
      if (draw(random, 0, 1) == 0) continue;
      const int codec = draw(random, 0, 1);
      switch (draw(random, 0, 3)) {
        case 0:
          decisions.gaps[g] = Keep::kHost;
          break;
        case 1:
          if (scheduler.can_be_recomputed(static_cast<int>(g))) decisions.gaps[g] = Keep::kAgain;
          break;
        case 2:
          if (scheduler.can_be_recomputed(static_cast<int>(g)))
            decisions.gaps[g] = Keep::kAgainEarly;
          break;
        default:
          if (!may_be_packed(graph, scheduler.gaps()[g], codec)) break;
          decisions.gaps[g] = Keep::kPacked;
          decisions.codec[g] = codec;
      }
    }
    Misfit misfit;
    const auto made = scheduler.schedule(decisions, graph.budget_bytes, &misfit);
    if (!made) {
      ++refused;
      EXPECT_EQ(misfit.bytes, 0);
      continue;
    }
    ++made_plans;
    for (const int t : made->plan.starts_on_host)
      EXPECT_EQ(decisions.gaps[scheduler.wrapped_gap(t)], Keep::kHost);
    across += made->plan.starts_on_host.empty() ? 0 : 1;
    smaller += made->timeline.peak_bytes < kept->timeline.peak_bytes ? 1 : 0;
    // With less memory the plan waits for copies to the host to end, and is still valid.
    const int64_t least = made->timeline.peak_bytes - 8 * draw(random, 1, 4);
    const auto tight = scheduler.schedule(decisions, least);
    EXPECT_LE(tight ? tight->timeline.peak_bytes : 0, least);
  }
  EXPECT_GT(made_plans, 2500);
  EXPECT_GT(smaller, 800);
  EXPECT_GT(refused, 0);
  EXPECT_GT(across, 500);
}

// Each node reads the two previous results. If recomputations recomputed their inputs, too, the
// last node would run a Fibonacci number of times.
TEST(Schedule, WhatIsMadeAgainFromWhatIsMadeAgainEndsSomewhere) {
  constexpr int kNodes = 60;
  Graph graph{.budget_bytes = int64_t{1} << 40};
  graph.tensors = {{.id = "x", .bytes = 8, .kind = TensorKind::kInput}};
  std::vector<int> made = {0, 0};
  const auto add = [&](std::vector<int> inputs) {
    const int out = static_cast<int>(graph.tensors.size());
    graph.tensors.push_back({.id = fmt::format("a{}", out), .bytes = 8});
    graph.nodes.push_back(
        {.name = fmt::format("n{}", out), .inputs = std::move(inputs), .outputs = {out}});
    graph.nodes.back().algorithms = {{"only", 1, 0}};
    return out;
  };
  for (int i = 0; i < kNodes; ++i) made.push_back(add({made[i], made[i + 1]}));
  for (int i = kNodes + 1; i > 1; --i) add({made[i]});
  const Scheduler scheduler(graph);
  const auto schedule = [&](Keep keep) {
    return scheduler.schedule({.gaps = std::vector<Keep>(scheduler.gaps().size(), keep),
                               .codec = std::vector<int>(scheduler.gaps().size()),
                               .algorithms = std::vector<int>(graph.nodes.size())},
                              graph.budget_bytes);
  };
  EXPECT_FALSE(schedule(Keep::kAgain).has_value());
  EXPECT_TRUE(schedule(Keep::kResident).has_value());
}

}  // namespace
}  // namespace dovetail::plan::schedule_test
