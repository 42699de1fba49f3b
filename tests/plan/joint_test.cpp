#include "dovetail/plan/solve/joint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/plan/solve/joint_program.h"
#include "dovetail/plan/solve/search.h"
#include "tests/plan/best_of_all.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan::joint_test {
namespace {

const MilpOptions kExact = {.time_limit_s = 20, .relative_gap = 0};
constexpr double kNone = std::numeric_limits<double>::infinity();

int64_t keep_all_peak(const Graph& graph) {
  const Scheduler scheduler(graph);
  const Decisions all{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                      .codec = std::vector<int>(scheduler.gaps().size()),
                      .algorithms = std::vector<int>(graph.nodes.size())};
  return scheduler.schedule(all, graph.budget_bytes)->timeline.peak_bytes;
}

/// Sets a budget between the floor of a step and the peak of keeping everything.
Graph tight_step(Random& random, Graph graph, const SolveOptions& options = {}) {
  const int64_t floor = floor_of(graph, options).bytes, all = keep_all_peak(graph);
  graph.budget_bytes = floor + (all - floor) * draw(random, 1, 9) / 10;
  return graph;
}

/// Step of `layers` layers. Half of the steps have state and parameters that are not updated. With
/// `of_host` updates may find tensors on the host.
Graph tight_step(Random& random, int layers, Random* of_host = nullptr) {
  Graph graph = random_step(random, layers);
  if (draw(random, 0, 1) == 0) add_state(random, graph);
  if (of_host != nullptr) let_updates_run_on_host(*of_host, graph);
  return tight_step(random, std::move(graph));
}

Decisions random_decisions(Random& random, const Graph& graph, const Scheduler& scheduler) {
  const size_t gaps = scheduler.gaps().size();
  Decisions out{.gaps = std::vector<Keep>(gaps), .codec = std::vector<int>(gaps)};
  for (size_t g = 0; g < gaps; ++g) {
    const GraphTensor& tensor = graph.tensors[scheduler.gaps()[g].tensor];
    auto keep = static_cast<Keep>(draw(random, 0, 4));
    const bool again = keep == Keep::kAgain || keep == Keep::kAgainEarly;
    if ((again && !scheduler.can_be_recomputed(static_cast<int>(g))) ||
        (keep == Keep::kPacked && resident_at_start(tensor.kind)))
      keep = Keep::kHost;
    out.gaps[g] = keep;
    out.codec[g] = keep == Keep::kPacked && tensor.lossy_ok ? draw(random, 0, 1) : 0;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& algorithms = graph.nodes[n].algorithms;
    out.algorithms.push_back(draw(random, 0, static_cast<int>(algorithms.size()) - 1));
    for (const int t : algorithms[out.algorithms.back()].on_host)
      for (const int g : scheduler.gaps_on_host(static_cast<int>(n), t)) out.gaps[g] = Keep::kHost;
  }
  return out;
}

TEST(JointProgram, EveryScheduleIsAPointOfIt) {
  Random random(21), of_slowdown(22), of_host(23);
  int points = 0, across = 0, behind = 0, there = 0;
  for (int round = 0; round < 3000; ++round) {
    Graph graph = tight_step(random, draw(random, 2, 5), round % 2 == 0 ? &of_host : nullptr);
    graph.bandwidth.slowdown = 0.1 * draw(of_slowdown, 0, 8);
    const Scheduler scheduler(graph);
    Decisions decisions = random_decisions(random, graph, scheduler);
    const SolveOptions options;
    const JointProgram any(graph, scheduler, options, 1);
    for (int n = 0; n < std::ssize(graph.nodes); ++n)  // otherwise the program would leave them out
      for (const Algorithm& algorithm : graph.nodes[n].algorithms)
        for (const int t : algorithm.on_host)
          for (const int g : scheduler.gaps_on_host(n, t))
            EXPECT_TRUE(any.moves(g)) << graph.tensors[t].id;
    for (size_t g = 0; g < decisions.gaps.size(); ++g)
      if (!any.moves(static_cast<int>(g))) decisions.gaps[g] = Keep::kResident;
    const auto on_host = [&](size_t n) {
      return graph.nodes[n].algorithms[decisions.algorithms[n]].on_host;
    };
    const auto schedule = scheduler.schedule(decisions, graph.budget_bytes);
    if (!schedule) continue;
    const JointProgram joint(graph, scheduler, options, schedule->timeline.makespan_s);
    const std::vector<double> point = joint.point(decisions, *schedule);
    SCOPED_TRACE(round);
    EXPECT_LE(joint.program().violation(point), kMilpTolerance);
    EXPECT_NEAR(joint.seconds(joint.program().objective(point)), schedule->expected_s, 1e-9);
    ++points;
    behind += schedule->expected_s > schedule->timeline.makespan_s ? 1 : 0;
    across += schedule->plan.starts_on_host.empty() ? 0 : 1;
    for (size_t n = 0; n < graph.nodes.size(); ++n) there += on_host(n).empty() ? 0 : 1;
  }
  EXPECT_GE(points, 300);
  EXPECT_GE(across, 150);
  EXPECT_GE(behind, 150);
  EXPECT_GE(there, 100);
}

/// The smallest storages of a large step are left out of the program.
TEST(JointProgram, KnowsOfUpdatesThatFindTheSmallestOnTheHost) {
  constexpr int64_t kLarge = 4096;
  Random random(27);
  Graph graph = random_step(random, 32);
  for (GraphTensor& tensor : graph.tensors) tensor.bytes *= kLarge;
  graph.bandwidth = {.to_host = 10 * kLarge, .to_device = 10 * kLarge};
  std::vector<int> updates, moments;
  for (int n = 0; n < std::ssize(graph.nodes); ++n) {
    GraphNode& node = graph.nodes[n];
    for (Algorithm& algorithm : node.algorithms) algorithm.workspace_bytes *= kLarge;
    if (node.mutates.empty()) continue;
    updates.push_back(n);
    moments.push_back(static_cast<int>(graph.tensors.size()));
    graph.tensors.push_back(
        {.id = "m" + node.name.substr(1), .bytes = 8, .kind = TensorKind::kState});
    node.mutates.push_back(moments.back());
    node.algorithms.push_back({"host", node.algorithms[0].time_s, 0, node.mutates});
  }
  ASSERT_GT(graph.nodes.size(), 64);
  graph = tight_step(random, std::move(graph));
  const Scheduler scheduler(graph);
  const SolveOptions options;
  const JointProgram any(graph, scheduler, options, 1);
  Decisions decisions = Search(graph, options).all_offloaded(Keep::kHost, options);
  for (size_t g = 0; g < decisions.gaps.size(); ++g) {
    const bool found =
        std::find(moments.begin(), moments.end(), scheduler.gaps()[g].tensor) != moments.end();
    EXPECT_FALSE(found && any.moves(static_cast<int>(g)));
    if (!found && !any.moves(static_cast<int>(g))) decisions.gaps[g] = Keep::kResident;
  }
  for (const int n : updates)
    ASSERT_EQ(graph.nodes[n].algorithms[decisions.algorithms[n]].name, "host");
  const auto schedule = scheduler.schedule(decisions, graph.budget_bytes);
  ASSERT_TRUE(schedule);
  const JointProgram joint(graph, scheduler, options, schedule->timeline.makespan_s);
  const std::vector<double> point = joint.point(decisions, *schedule);
  EXPECT_LE(joint.program().violation(point), kMilpTolerance);
  EXPECT_TRUE(scheduler.schedule(joint.decisions(point), graph.budget_bytes));
}

/// Expects the best of all decisions for twelve small steps. With `of_host` updates may find
/// tensors on the host.
void finds_the_best_of_all_decisions(Random* of_host) {
  Random random(22);
  int cases = 0, optimal = 0, by_greedy = 0, closed = 0;
  double worst = 1;
  for (int round = 0; round < 200 && cases < 12; ++round) {
    const Graph graph = tight_step(random, 3, of_host);
    if (Scheduler(graph).gaps().size() > 7) continue;
    const double best = best_of_all(graph);
    if (best == kNone) continue;
    ++cases;
    SCOPED_TRACE(round);
    double greedy_s = kNone;
    try {
      greedy_s = solve(graph, {}).schedule.timeline.makespan_s;
    } catch (const UserError&) {  // it finds none
    }
    const JointSolution made = solve_jointly(graph, {}, kExact);
    const Timeline& timeline = made.solution.schedule.timeline;
    EXPECT_LE(timeline.peak_bytes, graph.budget_bytes);
    EXPECT_GE(timeline.makespan_s, best - 1e-9);
    EXPECT_LE(timeline.makespan_s, greedy_s + 1e-9);
    EXPECT_LE(made.report.bound_s, best * (1 + 1e-6));
    EXPECT_GE(timeline.makespan_s, made.solution.bound_s - 1e-9);
    optimal += timeline.makespan_s <= best + 1e-9 ? 1 : 0;
    by_greedy += greedy_s <= best + 1e-9 ? 1 : 0;
    closed += made.report.bound_s >= best * (1 - 1e-6) ? 1 : 0;
    worst = std::max(worst, timeline.makespan_s / best);
  }
  ::testing::Test::RecordProperty(
      "optimal", fmt::format("{} of {} (greedy {}, proven {}), worst {:.3f}", optimal, cases,
                             by_greedy, closed, worst));
  EXPECT_EQ(cases, 12);
  EXPECT_GE(optimal, cases * 95 / 100) << "of " << cases << ", worst " << worst;
}

TEST(Joint, FindsTheBestOfAllDecisionsOnSmallSteps) { finds_the_best_of_all_decisions(nullptr); }

TEST(Joint, FindsTheBestWhereUpdatesMayRunOnTheHost) {
  Random of_host(26);
  finds_the_best_of_all_decisions(&of_host);
}

/// Returns the number of 45 small steps for which the program's own solution is the best. Half of
/// the steps allow only recomputation.
int best_by_the_program_alone(const SolveOptions& options) {
  Random random(24);
  int cases = 0, optimal = 0;
  for (int round = 0; round < 200 && cases < 45; ++round) {
    Graph step = random_step(random, 3);
    if (options.across_steps) add_state(random, step);
    Graph graph = tight_step(random, std::move(step), options);
    if (round % 2 == 0) {
      graph.bandwidth = {.to_host = 0.1, .to_device = 0.1};
      for (Codec& codec : graph.codecs) codec.ratio = 1;
    }
    const Scheduler scheduler(graph);
    if (scheduler.gaps().size() > 8) continue;
    const double best = best_of_all(graph, options);
    if (best == kNone) continue;
    ++cases;
    SCOPED_TRACE(round);
    const JointProgram joint(graph, scheduler, options, 3 * best);
    const MilpResult result = solve_milp(joint.program(), kExact);
    EXPECT_EQ(result.status, MilpResult::kOptimal);
    if (result.values.empty()) continue;
    EXPECT_LE(joint.seconds(result.objective), best * (1 + 1e-6));
    const auto made = scheduler.schedule(joint.decisions(result.values), graph.budget_bytes);
    optimal += made && made->timeline.makespan_s <= best + 1e-9 ? 1 : 0;
  }
  EXPECT_EQ(cases, 45);
  return optimal;
}

TEST(Joint, TheProgramAloneFindsTheBestOfNearlyAllSmallSteps) {
  const int within = best_by_the_program_alone({.across_steps = false}),
            across = best_by_the_program_alone({});
  RecordProperty("optimal",
                 fmt::format("{} of 45, {} with what starts on the host", within, across));
  EXPECT_GE(within, 45 * 85 / 100);
  EXPECT_GE(across, 45 * 2 / 3);
}

TEST(Joint, IsFasterThanGreedyOnSomeStepsAndSlowerOnNone) {
  Random random(23);
  int faster = 0;
  for (int round = 0; round < 12; ++round) {
    const Graph graph = tight_step(random, 4 + round % 3);
    try {
      const double greedy_s = solve(graph, {}).schedule.timeline.makespan_s;
      const JointSolution made = solve_jointly(graph, {}, {.time_limit_s = 2, .relative_gap = 0});
      const double makespan_s = made.solution.schedule.timeline.makespan_s;
      EXPECT_LE(makespan_s, greedy_s + 1e-9);
      EXPECT_LE(made.report.bound_s, makespan_s);
      EXPECT_NEAR(made.report.gap, 1 - made.report.bound_s / makespan_s, 1e-9);
      faster += makespan_s < greedy_s * (1 - 1e-6) ? 1 : 0;
    } catch (const UserError&) {  // no plan was found
    }
  }
  RecordProperty("faster", faster);
  EXPECT_GE(faster, 1);
}

TEST(Joint, MoreTechniquesAreNeverSlower) {
  Random random(25);
  const MilpOptions milp = {.time_limit_s = 0.3, .relative_gap = 0};
  int alone = 0;
  for (int round = 0; round < 3; ++round) {
    const Graph graph = tight_step(random, 3);
    for (const SolveOptions& fewer :
         {SolveOptions{.offload = false}, SolveOptions{.recompute = false},
          SolveOptions{.compress = false}, SolveOptions{.algorithms = false}}) {
      try {
        const JointSolution made = solve_jointly(graph, fewer, milp);
        const Decisions& decisions = made.solution.decisions;
        for (const Keep keep : decisions.gaps) {
          EXPECT_TRUE(fewer.offload || keep != Keep::kHost);
          EXPECT_TRUE(fewer.recompute || (keep != Keep::kAgain && keep != Keep::kAgainEarly));
          EXPECT_TRUE(fewer.compress || keep != Keep::kPacked);
        }
        const JointSolution all = solve_jointly(graph, {.start = decisions}, milp);
        EXPECT_LE(all.solution.schedule.timeline.makespan_s,
                  made.solution.schedule.timeline.makespan_s + 1e-9);
        EXPECT_LE(all.report.bound_s, made.solution.schedule.timeline.makespan_s * (1 + 1e-6));
        ++alone;
      } catch (const UserError&) {  // not by these techniques
      }
    }
  }
  EXPECT_GE(alone, 3);
}

TEST(Joint, BelowTheFloorTheErrorIsThatOfSolve) {
  Random random(14);
  Graph graph = random_step(random, 5);
  graph.budget_bytes = floor_of(graph, {}).bytes - 1;
  std::string message;
  try {
    solve(graph, {});
  } catch (const UserError& error) {
    message = error.what();
  }
  ASSERT_THAT(message, ::testing::HasSubstr("below the floor"));
  EXPECT_THAT([&] { solve_jointly(graph, {}, kExact); },
              ::testing::ThrowsMessage<UserError>(message));
}

}  // namespace
}  // namespace dovetail::plan::joint_test
