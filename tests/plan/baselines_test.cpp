#include "dovetail/plan/baselines/baselines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "dovetail/plan/solve/solve.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/stage_search.h"

namespace dovetail::plan::baselines_test {
namespace {

/// Returns the bytes held just before a time.
int64_t held(const Timeline& timeline, double time_s) {
  int64_t bytes = 0;
  for (const MemoryPoint& point : timeline.memory)
    if (point.time_s <= time_s + 1e-9) bytes = point.bytes;
  return bytes;
}

TEST(Auto, GivesEveryRunTheFastestAlgorithmThatFits) {
  Random random(41);
  int chosen = 0;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    Graph graph = random_step(random, 4);
    const auto [seen, algorithms] = seen_as(graph, Seen::kLeastWorkspace);
    const int64_t all = check(seen, kept_plan(seen)).peak_bytes;
    graph.budget_bytes = all + 8 * draw(random, -1, 3);
    const Plan least = kept_plan(seen);
    if (graph.budget_bytes < all) {
      EXPECT_THROW(choose_algorithms(graph, least, algorithms), InvalidPlan);
      continue;
    }
    // Without offloading, the memory during a node does not depend on the algorithms of other
    // nodes.
    const Timeline before = check(seen, least);
    const Plan made = choose_algorithms(graph, least, algorithms);
    ASSERT_EQ(made.actions.size(), least.actions.size());
    for (size_t a = 0; a < made.actions.size(); ++a) {
      if (made.actions[a].op != Op::kCompute) continue;
      const GraphNode& node = graph.nodes[made.actions[a].node];
      const int64_t others = held(before, before.actions[a].start_s) -
                             seen.nodes[made.actions[a].node].algorithms[0].workspace_bytes;
      double fastest_s = std::numeric_limits<double>::infinity();
      for (const Algorithm& algorithm : node.algorithms)
        if (others + algorithm.workspace_bytes <= graph.budget_bytes)
          fastest_s = std::min(fastest_s, algorithm.time_s);
      EXPECT_EQ(node.algorithms[made.actions[a].algorithm].time_s, fastest_s) << node.name;
      chosen += made.actions[a].algorithm != 0 ? 1 : 0;
    }
    EXPECT_LE(check(graph, made).peak_bytes, graph.budget_bytes);
  }
  EXPECT_GE(chosen, 100);
}

TEST(SeenAs, ShowsOneAlgorithmOfEachNode) {
  Graph graph;
  graph.tensors = {{.id = "a", .bytes = 8}};
  graph.nodes = {{.name = "n",
                  .outputs = {0},
                  .algorithms = {{"least", 4, 0}, {"middle", 2, 8}, {"fastest", 1, 16}}}};
  const auto seen = [&](Seen as) {
    const SeenGraph made = seen_as(graph, as);
    EXPECT_EQ(made.graph.nodes[0].algorithms.size(), 1);
    const Algorithm& only = made.graph.nodes[0].algorithms[0];
    return std::tuple(made.algorithms[0], only.time_s, only.workspace_bytes);
  };
  EXPECT_EQ(seen(Seen::kLeastWorkspace), std::tuple(0, 4.0, 0));
  EXPECT_EQ(seen(Seen::kFastestTime), std::tuple(0, 1.0, 0));
  EXPECT_EQ(seen(Seen::kFastest), std::tuple(2, 1.0, 16));
}

/// Two nodes beside a copy, and a budget in which the copied tensor and a workspace exclude each
/// other. In the order of the plan, Auto makes `first` so fast that the tensor is still there when
/// `second` begins. `second` then stays slow.
TEST(Auto, TakesTheBestOfSeveralOrders) {
  Graph graph;
  graph.bandwidth = {.to_host = 4, .to_device = 4};
  graph.tensors = {{.id = "x", .bytes = 16},
                   {.id = "a", .bytes = 8},
                   {.id = "b", .bytes = 8, .kind = TensorKind::kOutput}};
  graph.nodes = {{.name = "makes", .outputs = {0}, .algorithms = {{"only", 1, 0}}},
                 {.name = "first",
                  .outputs = {1},
                  .algorithms = {{"slow", 5, 0}, {"fast", 4, 0}, {"faster", 2, 8}}},
                 {.name = "second",
                  .inputs = {1},
                  .outputs = {2},
                  .algorithms = {{"slow", 6, 0}, {"fast", 1, 16}}}};
  graph.final = {2};
  // x leaves while `first` runs: 16 bytes until 1 + 4 s. If `first` takes 2 s, x is still there
  // when `second` begins, and leaves no room for the workspace of `second`.
  graph.budget_bytes = 32;
  const Plan plan{.actions = {{.op = Op::kCompute, .node = 0},
                              {.op = Op::kOffload, .tensor = 0},
                              {.op = Op::kFree, .tensor = 0},
                              {.op = Op::kCompute, .node = 1},
                              {.op = Op::kCompute, .node = 2}}};
  const Plan made = choose_algorithms(graph, plan, {0, 0, 0});
  EXPECT_EQ(made.actions[3].algorithm, 1);
  EXPECT_EQ(made.actions[4].algorithm, 1);
  EXPECT_DOUBLE_EQ(check(graph, made).makespan_s, 1 + 4 + 1);
}

TEST(Baselines, APlanShowsTheDecisionsThatItCameFrom) {
  Random random(42);
  int shown = 0, moved = 0, other = 0;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    const Graph graph = random_step(random, 4);
    const Scheduler scheduler(graph);
    Decisions decisions{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                        .codec = std::vector<int>(scheduler.gaps().size())};
    // Decides at most one gap of a tensor: a copy from an earlier gap may serve a later one,
    // whatever was decided.
    std::set<int> has_moved;
    for (size_t g = 0; g < decisions.gaps.size(); ++g) {
      if (has_moved.contains(scheduler.gaps()[g].tensor) || draw(random, 0, 2) == 0) continue;
      if (scheduler.gaps()[g].wraps ||
          resident_at_start(graph.tensors[scheduler.gaps()[g].tensor].kind))
        continue;
      const Keep some[] = {Keep::kResident, Keep::kHost, Keep::kAgain, Keep::kPacked};
      decisions.gaps[g] = some[draw(random, 0, 3)];
      if (decisions.gaps[g] == Keep::kAgain && !scheduler.can_be_recomputed(static_cast<int>(g)))
        decisions.gaps[g] = Keep::kHost;
      if (decisions.gaps[g] != Keep::kResident) has_moved.insert(scheduler.gaps()[g].tensor);
    }
    for (const GraphNode& node : graph.nodes)
      decisions.algorithms.push_back(draw(random, 0, static_cast<int>(node.algorithms.size()) - 1));
    const auto schedule = scheduler.schedule(decisions, graph.budget_bytes);
    if (!schedule) continue;
    ++shown;
    const Decisions again = decisions_of(graph, schedule->plan);
    EXPECT_EQ(again.algorithms, decisions.algorithms);
    for (size_t g = 0; g < decisions.gaps.size(); ++g)
      other += again.gaps[g] != decisions.gaps[g] ? 1 : 0;
    for (const Keep keep : decisions.gaps) moved += keep != Keep::kResident ? 1 : 0;
  }
  EXPECT_GE(shown, 200);
  EXPECT_GE(moved, 200);
  // A node that is recomputed for one of its results also makes the others, wherever their copies
  // are.
  EXPECT_LE(other, moved / 50) << "of " << moved;
}

TEST(Baselines, PlansFitAndAreNoFasterThanTheProgram) {
  Random random(43);
  int fits = 0;
  for (int round = 0; round < 15; ++round) {
    SCOPED_TRACE(round);
    Graph graph = random_step(random, 4);
    const int64_t all = check(graph, kept_plan(graph)).peak_bytes;
    const int64_t floor =
        floor_of(graph, {.offload = false, .compress = false, .across_steps = false}).bytes;
    graph.budget_bytes = floor + (all - floor) * draw(random, 3, 9) / 10;
    const Baseline program = checkmate(graph, {.time_limit_s = 20, .relative_gap = 0});
    for (const Baseline& other :
         {chen_sqrt(graph, Candidates::kAll), chen_greedy(graph, Candidates::kAll),
          chen_greedy(graph, Candidates::kArticulation),
          checkmate_rounded(graph, {.time_limit_s = 20})}) {
      if (!other.plan) continue;
      ASSERT_TRUE(program.plan) << other.name;
      EXPECT_LE(program.time_s, other.time_s * (1 + 1e-6)) << other.name;
      check(graph, *other.plan);
    }
    if (!program.plan) continue;
    ++fits;
    EXPECT_LE(check(graph, *program.plan).makespan_s, program.time_s * (1 + 1e-6));
    const std::vector<int> least = seen_as(graph, Seen::kLeastWorkspace).algorithms;
    EXPECT_LE(check(graph, choose_algorithms(graph, *program.plan, least)).makespan_s,
              program.time_s * (1 + 1e-6));
  }
  EXPECT_GE(fits, 8);
}

}  // namespace
}  // namespace dovetail::plan::baselines_test
