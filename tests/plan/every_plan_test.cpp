#include "tests/plan/every_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/check.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/solve/joint.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan::every_plan_test {
namespace {

constexpr int kRounds = 64, kDecided = 50;
constexpr size_t kNodes = 8;
constexpr int64_t kStates = 300'000;
constexpr double kEqual = 1e-9;

/// Step of at most eight nodes at a budget between its floor and the peak of keeping everything.
/// Half of them have state, half codecs; in half some updates may find tensors on the host.
Graph tight_small_step(Random& random) {
  while (true) {
    Graph graph = random_step(random, draw(random, 2, 3));
    if (draw(random, 0, 1) == 0) add_state(random, graph);
    if (draw(random, 0, 1) == 0) let_updates_run_on_host(random, graph);
    if (graph.nodes.size() > kNodes) continue;
    if (draw(random, 0, 1) == 0) graph.codecs.clear();
    const int64_t all = check(graph, keep_all(graph)).peak_bytes, floor = floor_of(graph, {}).bytes;
    graph.budget_bytes = floor + (all - floor) * draw(random, 1, 9) / 10;
    return graph;
  }
}

/// The solver's plan of a step and the result of the exhaustive search. The solver's progress
/// depends on the machine's load. If the search finds a faster plan, the solver gets more time.
struct Compared {
  std::optional<Solution> made;
  std::optional<EveryPlan> every;
  double joint_s() const { return made->schedule.timeline.makespan_s; }
  bool is_beaten() const { return every->best() && every->best_s() < joint_s() - kEqual; }
};
void compare(const Graph& graph, Compared& out) {
  for (const double limit_s : {0.3, 10.0}) {
    try {
      out.made = solve_jointly(graph, {}, {.time_limit_s = limit_s, .relative_gap = 0}).solution;
      out.every.emplace(graph, out.joint_s() * (1 + 1e-6), kStates);
      if (!out.is_beaten()) return;
    } catch (const UserError&) {
      out.every.emplace(graph, std::numeric_limits<double>::infinity(), kStates);
      if (!out.every->best()) return;
    }
  }
}

TEST(EveryPlan, TheFastestOfThemIsTheSolvers) {
  Random random(31);
  int decided = 0, slower_than_free = 0;
  size_t most_nodes = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Graph graph = tight_small_step(random);
    SCOPED_TRACE(round);
    Compared both;
    compare(graph, both);
    const EveryPlan& every = *both.every;
    if (every.best()) {
      EXPECT_NEAR(check(graph, *every.best()).makespan_s, every.best_s(), kEqual);
      ASSERT_TRUE(both.made) << "the solver has none";
      EXPECT_FALSE(both.is_beaten()) << every.best_s() << " in place of " << both.joint_s();
    }
    if (!both.made || !every.complete()) continue;
    ASSERT_TRUE(every.best()) << "the solver's is not among them";
    EXPECT_NEAR(every.best_s(), both.joint_s(), kEqual);
    ++decided;
    slower_than_free += both.joint_s() > both.made->bound_s + kEqual ? 1 : 0;
    most_nodes = std::max(most_nodes, graph.nodes.size());
  }
  RecordProperty("decided", decided);
  RecordProperty("slower_than_free", slower_than_free);
  EXPECT_GE(decided, kDecided);
  EXPECT_GE(slower_than_free, kDecided / 2);  // the budget affects the time
  EXPECT_EQ(most_nodes, kNodes);
}

TEST(EveryPlan, HoldsTheLimitOfTheHost) {
  Random random(32);
  int limited = 0, plans = 0, slower = 0;
  for (int round = 0; round < kRounds; ++round) {
    Graph graph = tight_small_step(random);
    SCOPED_TRACE(round);
    Compared free;
    compare(graph, free);
    if (!free.made) continue;
    const int64_t most = free.made->schedule.timeline.host_peak_bytes;
    graph.host_bytes = most * draw(random, 0, 9) / 10;
    Compared both;
    compare(graph, both);
    limited += most > *graph.host_bytes ? 1 : 0;
    if (both.made) {
      ++plans;
      EXPECT_LE(check(graph, both.made->schedule.plan).host_peak_bytes, *graph.host_bytes);
    }
    if (!both.every->best()) continue;
    EXPECT_LE(check(graph, *both.every->best()).host_peak_bytes, *graph.host_bytes);
    ASSERT_TRUE(both.made) << "the solver has none";
    slower += both.is_beaten();
  }
  EXPECT_GE(limited, kRounds / 4);
  EXPECT_GE(plans, kRounds / 8);
  EXPECT_LE(slower, kRounds / 32) << "the search alone knows the limit, the program does not";
}

}  // namespace
}  // namespace dovetail::plan::every_plan_test
