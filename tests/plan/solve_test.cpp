#include "dovetail/plan/solve/solve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/plan/baselines/baselines.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/solve/search.h"
#include "tests/plan/best_of_all.h"
#include "tests/plan/chain.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan::solve_test {
namespace {

int64_t keep_all_peak(const Graph& graph) { return check(graph, keep_all(graph)).peak_bytes; }

TEST(Solve, ComesCloseToTheBestOfAllDecisionsOnSmallSteps) {
  Random random(11);
  int cases = 0, optimal = 0, across = 0;
  double worst = 1;
  for (int round = 0; round < 150; ++round) {
    Graph graph = random_step(random, 3);
    if (round % 2 == 0) add_state(random, graph);
    const int64_t floor = floor_of(graph, {}).bytes, all = keep_all_peak(graph);
    graph.budget_bytes = floor + (all - floor) * draw(random, 1, 9) / 10;
    if (Scheduler(graph).gaps().size() > 8) continue;
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
    across += made.schedule.plan.starts_on_host.empty() ? 0 : 1;
  }
  RecordProperty("optimal", fmt::format("{} of {}, worst {:.3f}; {} across steps", optimal, cases,
                                        worst, across));
  EXPECT_GE(across, 10);
  EXPECT_GE(cases, 30);
  EXPECT_GE(optimal, cases * 9 / 10) << "of " << cases << ", worst " << worst;
  EXPECT_LE(worst, 1.15);
}

TEST(Solve, FindsAPlanWheneverAnyDecisionsGiveOne) {
  Random random(12);
  int found = 0;
  for (int round = 0; round < 100; ++round) {
    Graph graph = random_step(random, 3);
    if (round % 2 == 0) add_state(random, graph);
    const int64_t floor = floor_of(graph, {}).bytes;
    graph.budget_bytes = floor + 8 * draw(random, 0, 2);
    if (Scheduler(graph).gaps().size() > 7 ||
        best_of_all(graph) == std::numeric_limits<double>::infinity())
      continue;
    ++found;
    EXPECT_NO_THROW(solve(graph, {})) << "round " << round;
  }
  EXPECT_GE(found, 10);
}

// On a slow machine the solver finds a plan whenever it does on a fast one.
TEST(Solve, WhetherThereIsAPlanDoesNotDependOnTheTimeLimit) {
  Random random(16);
  int found = 0, none = 0;
  for (int round = 0; round < 60; ++round) {
    Graph graph = random_step(random, draw(random, 3, 7));
    if (round % 2 == 0) add_state(random, graph);
    const int64_t all = keep_all_peak(graph);
    for (const SolveOptions& some :
         {SolveOptions{}, SolveOptions{.offload = false}, SolveOptions{.recompute = false},
          SolveOptions{.offload = false, .compress = false}}) {
      SolveOptions options = some;
      const int64_t floor = floor_of(graph, options).bytes;
      graph.budget_bytes = floor + std::max<int64_t>(all - floor, 0) * draw(random, 0, 5) / 10;
      const auto has_plan = [&](double time_limit_s) {
        options.time_limit_s = time_limit_s;
        try {
          return solve(graph, options).schedule.timeline.peak_bytes <= graph.budget_bytes;
        } catch (const UserError&) {
          return false;
        }
      };
      const bool in_time = has_plan(0.3);
      EXPECT_EQ(has_plan(0), in_time)
          << "round " << round << ", " << graph.budget_bytes << " bytes";
      in_time ? ++found : ++none;
    }
  }
  RecordProperty("found", fmt::format("{}, none {}", found, none));
  EXPECT_GE(found, 150);
}

TEST(Solve, MoreMemoryAndMoreTechniquesAreNeverSlower) {
  Random random(13);
  for (int round = 0; round < 2; ++round) {
    Graph graph = random_step(random, 4);
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
      for (const SolveOptions& fewer :
           {SolveOptions{.offload = false}, SolveOptions{.recompute = false},
            SolveOptions{.compress = false}, SolveOptions{.algorithms = false},
            SolveOptions{.across_steps = false}}) {
        try {
          const Solution alone = solve(graph, fewer);
          const Solution with_start = solve(graph, {.start = alone.decisions});
          EXPECT_LE(with_start.schedule.timeline.makespan_s,
                    alone.schedule.timeline.makespan_s + 1e-9);
        } catch (const UserError&) {  // not by these techniques
        }
      }
    }
    graph.budget_bytes = int64_t{1} << 40;
    const Solution free = solve(graph, {});
    EXPECT_DOUBLE_EQ(free.schedule.timeline.makespan_s, free.bound_s);
  }
}

TEST(Solve, NoPlanIsExpectedToTakeLongerThanOneForLessMemory) {
  constexpr int kBudgets = 20;
  Random random(15);
  int falls = 0;
  for (int round = 0; round < 6; ++round) {
    Graph graph = random_step(random, 3 + round % 3);
    if (round % 2 == 0) add_state(random, graph);
    const int64_t floor = floor_of(graph, {}).bytes, all = keep_all_peak(graph);
    std::vector<int64_t> budgets;
    for (int i = 1; i <= kBudgets; ++i) budgets.push_back(floor + (all - floor) * i / kBudgets);
    budgets.back() = int64_t{1} << 40;  // with every workspace
    const auto without_error = [](const Graph& within, const SolveOptions& options) {
      try {
        return solve(within, options);
      } catch (const UserError&) {  // just above the floor no plan may be found
        Solution none;
        none.schedule.expected_s = std::numeric_limits<double>::infinity();
        return none;
      }
    };
    SolveOptions options{.time_limit_s = 0.2};
    const std::vector<Solution> made = solve_each(graph, options, budgets, without_error);
    ASSERT_EQ(made.size(), budgets.size());
    for (size_t i = 0; i < made.size(); ++i) {
      const double before_s =
          i > 0 ? made[i - 1].schedule.expected_s : std::numeric_limits<double>::infinity();
      EXPECT_LE(made[i].schedule.expected_s, before_s);
      falls += made[i].schedule.expected_s < before_s ? 1 : 0;
      if (made[i].schedule.plan.actions.empty()) continue;
      graph.budget_bytes = budgets[i];
      EXPECT_DOUBLE_EQ(check(graph, made[i].schedule.plan).makespan_s,
                       made[i].schedule.timeline.makespan_s);
    }
    EXPECT_DOUBLE_EQ(made.back().schedule.expected_s, made.back().bound_s);  // all fits
  }
  EXPECT_GE(falls, 20);
}

// Adam's two moments of each parameter are larger than all tensors with which a layer computes.
TEST(Solve, ParametersAndStateMayTakeMoreThanTheDeviceHas) {
  Graph graph{.budget_bytes = int64_t{1} << 40};
  graph.bandwidth = {.to_host = 100, .to_device = 100};
  const auto add = [&](const char* what, int i, TensorKind kind, int64_t bytes) {
    graph.tensors.push_back({.id = fmt::format("{}{}", what, i), .bytes = bytes, .kind = kind});
    return static_cast<int>(graph.tensors.size()) - 1;
  };
  constexpr int kLayers = 6;
  int now = add("x", 0, TensorKind::kInput, 10), gradient = -1;
  std::vector<int> weights, made;
  const std::vector<Algorithm> one_second = {{"only", 1, 0}};
  for (int i = 0; i < kLayers; ++i) {
    weights.push_back(add("w", i, TensorKind::kParam, 50));
    made.push_back(now);
    const int next = add("a", i, TensorKind::kActivation, 10);
    graph.nodes.push_back(
        {.name = fmt::format("f{}", i), .inputs = {now, weights[i]}, .outputs = {next}});
    now = next;
  }
  gradient = now;
  for (int i = kLayers - 1; i >= 0; --i) {
    const int of_weight = add("d", i, TensorKind::kGrad, 50),
              next = add("g", i, TensorKind::kGrad, 10);
    const int m = add("m", i, TensorKind::kState, 50), v = add("v", i, TensorKind::kState, 50);
    graph.nodes.push_back({.name = fmt::format("b{}", i),
                           .inputs = {gradient, made[i], weights[i]},
                           .outputs = {next, of_weight}});
    graph.nodes.push_back(
        {.name = fmt::format("u{}", i), .inputs = {of_weight}, .mutates = {weights[i], m, v}});
    graph.final.insert(graph.final.end(), {weights[i], m, v});
    gradient = next;
  }
  for (GraphNode& node : graph.nodes) node.algorithms = one_second;
  const SolveOptions options{.time_limit_s = 1};
  SolveOptions within_step = options;
  within_step.across_steps = false;
  constexpr int64_t kState = kLayers * 3 * 50;
  // The floor is at u0, the last node: w, m, v, the gradient and the input. If state must stay, all
  // layers' w, m and v count.
  EXPECT_EQ(floor_of(graph, options).bytes, 4 * 50 + 10);
  EXPECT_EQ(floor_of(graph, within_step).bytes, kState + 50 + 10);
  EXPECT_TRUE(solve(graph, options).schedule.plan.starts_on_host.empty());  // all fits
  double before = 0;
  for (const int64_t budget : {int64_t{600}, int64_t{400}, int64_t{300}}) {
    graph.budget_bytes = budget;
    EXPECT_THROW(solve(graph, within_step), UserError);
    const Solution made_plan = solve(graph, options);
    EXPECT_LE(made_plan.schedule.timeline.peak_bytes, budget);
    int64_t away = 0;
    for (const int t : made_plan.schedule.plan.starts_on_host) away += graph.tensors[t].bytes;
    EXPECT_GE(away, kState + 10 - budget);  // else they do not fit when the step begins
    EXPECT_GE(made_plan.schedule.timeline.makespan_s, before);
    before = made_plan.schedule.timeline.makespan_s;
  }
}

TEST(Solve, LargeStepsAloneFindPlansOfLongChainsThatAreNoSlowerThanChens) {
  for (const int layers : {64, 200}) {
    for (const double part : {0.7, 0.5, 0.3}) {
      SCOPED_TRACE(fmt::format("{} layers, {} of the memory", layers, part));
      Graph graph = chain(layers);
      graph.budget_bytes = static_cast<int64_t>(part * static_cast<double>(keep_all_peak(graph)));
      const SolveOptions options = {.offload = false, .time_limit_s = 600};
      Search search(graph, options);
      for (const Keep again : {Keep::kAgain, Keep::kAgainEarly})
        search.shed(graph.budget_bytes, options, again);
      ASSERT_TRUE(search.best());
      const Baseline chen = chen_sqrt(graph, Candidates::kAll);
      EXPECT_LE(search.best()->schedule.expected_s, check(graph, *chen.plan).makespan_s);
    }
  }
}

TEST(Solve, BelowTheFloorIsSaidBeforeSolving) {
  Random random(14);
  Graph graph = random_step(random, 5);
  const Floor floor = floor_of(graph, {});
  graph.budget_bytes = floor.bytes - 1;
  const std::string where = floor.node < 0 ? "when it begins" : graph.nodes[floor.node].name;
  EXPECT_THAT(
      [&] { solve(graph, {}); },
      ::testing::ThrowsMessage<UserError>(::testing::AllOf(
          ::testing::HasSubstr(fmt::format("below the floor of this step, {} bytes", floor.bytes)),
          ::testing::HasSubstr(where))));
  // No plan has a peak below the floor.
  for (int round = 0; round < 200; ++round) {
    Graph other = random_step(random, 4);
    add_state(random, other);
    const Scheduler scheduler(other);
    Decisions decisions{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                        .codec = std::vector<int>(scheduler.gaps().size()),
                        .algorithms = std::vector<int>(other.nodes.size())};
    for (size_t g = 0; g < decisions.gaps.size(); ++g) {
      decisions.gaps[g] =
          scheduler.can_be_recomputed(static_cast<int>(g)) && draw(random, 0, 1) == 0 ? Keep::kAgain
                                                                                      : Keep::kHost;
      if (scheduler.gaps()[g].wraps && draw(random, 0, 2) == 0) decisions.gaps[g] = Keep::kResident;
    }
    const auto made = scheduler.schedule(decisions, other.budget_bytes);
    EXPECT_GE(made ? made->timeline.peak_bytes : other.budget_bytes, floor_of(other, {}).bytes);
  }
}

}  // namespace
}  // namespace dovetail::plan::solve_test
