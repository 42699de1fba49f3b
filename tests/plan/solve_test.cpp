#include "dovetail/plan/solve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/plan/profile.h"
#include "tests/plan/best_of_all.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan {
namespace {

int64_t keep_all_peak(const Graph& graph) { return check(graph, keep_all(graph)).peak_bytes; }

TEST(Solve, ComesCloseToTheBestOfAllDecisionsOnSmallSteps) {
  Random random(11);
  int cases = 0, optimal = 0;
  double worst = 1;
  for (int round = 0; round < 150; ++round) {
    Graph graph = random_step(random, 3);
    const int64_t floor = floor_of(graph, {}).bytes, all = keep_all_peak(graph);
    graph.budget_bytes = floor + (all - floor) * draw(random, 1, 9) / 10;
    if (Scheduler(graph).gaps().size() > 6) continue;
    const double best = best_of_all(graph);
    if (best == std::numeric_limits<double>::infinity()) continue;
    ++cases;
    SCOPED_TRACE(round);
    const Solution made = solve(graph, {});
    EXPECT_LE(made.schedule.timeline.peak_bytes, graph.budget_bytes);
    EXPECT_GE(made.schedule.timeline.makespan_s, best - 1e-9);
    EXPECT_GE(made.schedule.timeline.makespan_s, made.bound_s - 1e-9);
    optimal += made.schedule.timeline.makespan_s <= best + 1e-9 ? 1 : 0;
    worst = std::max(worst, made.schedule.timeline.makespan_s / best);
  }
  RecordProperty("optimal", fmt::format("{} of {}, worst {:.3f}", optimal, cases, worst));
  EXPECT_GE(cases, 30);
  EXPECT_GE(optimal, cases * 9 / 10) << "of " << cases << ", worst " << worst;
  EXPECT_LE(worst, 1.15);
}

TEST(Solve, FindsAPlanWheneverAnyDecisionsGiveOne) {
  Random random(12);
  int found = 0;
  for (int round = 0; round < 100; ++round) {
    Graph graph = random_step(random, 3);
    const int64_t floor = floor_of(graph, {}).bytes;
    graph.budget_bytes = floor + 8 * draw(random, 0, 2);
    if (Scheduler(graph).gaps().size() > 6 || best_of_all(graph) == std::numeric_limits<double>::infinity()) continue;
    ++found;
    EXPECT_NO_THROW(solve(graph, {})) << "round " << round;
  }
  EXPECT_GE(found, 10);
}

TEST(Solve, MoreMemoryAndMoreTechniquesAreNeverSlower) {
  Random random(13);
  for (int round = 0; round < 2; ++round) {
    Graph graph = random_step(random, 5);
    const int64_t floor = floor_of(graph, {}).bytes, all = keep_all_peak(graph);
    std::optional<Decisions> start;
    double before = std::numeric_limits<double>::infinity();
    for (int i = 2; i <= 20; i += 6) {
      graph.budget_bytes = floor + (all - floor) * i / 20;
      Solution joint;
      try {
        joint = solve(graph, {.start = start});
      } catch (const UserError&) {
        continue;
      }
      EXPECT_LE(joint.schedule.timeline.makespan_s, before + 1e-9);
      before = joint.schedule.timeline.makespan_s;
      start = joint.decisions;
      for (const SolveOptions& fewer : {SolveOptions{.offload = false}, SolveOptions{.recompute = false},
                                        SolveOptions{.compress = false}, SolveOptions{.algorithms = false}}) {
        try {
          const Solution alone = solve(graph, fewer);
          const Solution with_start = solve(graph, {.start = alone.decisions});
          EXPECT_LE(with_start.schedule.timeline.makespan_s, alone.schedule.timeline.makespan_s + 1e-9);
        } catch (const UserError&) {  // not by these techniques
        }
      }
    }
    graph.budget_bytes = int64_t{1} << 40;
    const Solution free = solve(graph, {});
    EXPECT_DOUBLE_EQ(free.schedule.timeline.makespan_s, free.bound_s);
  }
}

TEST(Solve, BelowTheFloorIsSaidBeforeSolving) {
  Random random(14);
  Graph graph = random_step(random, 5);
  const Floor floor = floor_of(graph, {});
  graph.budget_bytes = floor.bytes - 1;
  const std::string where = floor.node < 0 ? "when it begins" : graph.nodes[floor.node].name;
  EXPECT_THAT([&] { solve(graph, {}); },
              testing::ThrowsMessage<UserError>(
                  testing::AllOf(testing::HasSubstr(fmt::format("below the floor of this step, {} bytes", floor.bytes)),
                                 testing::HasSubstr(where))));
  // And no plan at all is below it.
  for (int round = 0; round < 200; ++round) {
    const Graph other = random_step(random, 4);
    const Scheduler scheduler(other);
    Decisions decisions{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                        .codec = std::vector<int>(scheduler.gaps().size()),
                        .algorithms = std::vector<int>(other.nodes.size())};
    for (size_t g = 0; g < decisions.gaps.size(); ++g)
      decisions.gaps[g] =
          scheduler.can_be_made_again(static_cast<int>(g)) && draw(random, 0, 1) == 0 ? Keep::kAgain : Keep::kHost;
    const auto made = scheduler.schedule(decisions, other.budget_bytes);
    EXPECT_GE(made ? made->timeline.peak_bytes : other.budget_bytes, floor_of(other, {}).bytes);
  }
}

}  // namespace
}  // namespace dovetail::plan
