#include "dovetail/plan/solve/covering_bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/plan/solve/joint.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "dovetail/plan/solve/search.h"
#include "tests/plan/best_of_all.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan::covering_bound_test {
namespace {

constexpr double kLimit_s = 20;

/// Step with a budget between its floor and the peak of keeping everything.
Graph tight_step(Random& random, int layers, const SolveOptions& options) {
  Graph graph = random_step(random, layers);
  if (draw(random, 0, 1) == 0) add_state(random, graph);
  const int64_t floor = floor_of(graph, options).bytes, all = keep_all_bytes(graph);
  graph.budget_bytes = floor + (all - floor) * draw(random, 1, 9) / 10;
  graph.bandwidth.slowdown = 0.25 * draw(random, 0, 4);
  return graph;
}

TEST(CoveringBound, IsTheTimeOfTheSharesThatMustBeFreed) {
  // a (100 bytes, 2 s) and b (60 bytes, 1 s) wait while the third node needs its workspace.
  Graph graph;
  graph.tensors = {{.id = "x", .bytes = 1, .kind = TensorKind::kInput},
                   {.id = "a", .bytes = 100},
                   {.id = "b", .bytes = 60},
                   {.id = "c", .bytes = 40},
                   {.id = "d", .bytes = 1, .kind = TensorKind::kOutput}};
  const auto node = [&](std::vector<int> inputs, int output, Algorithm algorithm) {
    graph.nodes.push_back({.name = "node",
                           .inputs = std::move(inputs),
                           .outputs = {output},
                           .algorithms = {std::move(algorithm)}});
  };
  node({0}, 1, {"only", 2, 0});
  node({0}, 2, {"only", 1, 0});
  node({0}, 3, {"only", 5, 60});
  node({1, 2, 3}, 4, {"only", 1, 0});
  graph.final = {4};
  graph.bandwidth = {.to_host = 100, .to_device = 50, .slowdown = 0.1};
  graph.budget_bytes = 205;  // 56 bytes less than the third node needs beside a and b
  const SolveOptions again{.offload = false, .compress = false};
  EXPECT_NEAR(covering_bound(graph, again, kLimit_s).seconds, 9 + 1 * 56 / 60.0, 1e-6);
  // Copies of b delay computing by a tenth of 0.6 s and of 1.2 s. A byte of a costs as much.
  const SolveOptions host{.recompute = false, .compress = false};
  EXPECT_NEAR(covering_bound(graph, host, kLimit_s).seconds, 9 + 0.18 * 56 / 60.0, 1e-6);
  graph.bandwidth.slowdown = 1;  // then half of the copies' time
  EXPECT_NEAR(covering_bound(graph, host, kLimit_s).seconds, 9 + 0.9 * 56 / 60.0, 1e-6);
  graph.budget_bytes = 261;  // everything fits
  const CoveringBound all = covering_bound(graph, again, kLimit_s);
  EXPECT_EQ(all.seconds, 9);
  EXPECT_EQ(all.columns, 0);
}

TEST(CoveringBound, NoScheduleIsFaster) {
  Random random(7);
  int above = 0;
  for (int i = 0; i < 120; ++i) {
    const SolveOptions options{.offload = draw(random, 0, 3) > 0,
                               .recompute = draw(random, 0, 3) > 0,
                               .compress = draw(random, 0, 1) > 0,
                               .time_limit_s = 0.05};
    const Graph graph = tight_step(random, draw(random, 3, 12), options);
    const CoveringBound bound = covering_bound(graph, options, kLimit_s);
    above += bound.seconds > minimum_s(graph) * 1.001 ? 1 : 0;
    try {
      EXPECT_LE(bound.seconds, solve(graph, options).schedule.expected_s * (1 + 1e-7)) << i;
    } catch (const UserError&) {
      continue;  // no plan was found
    }
  }
  EXPECT_GT(above, 40) << "the bound is rarely more than each node once";
}

TEST(CoveringBound, NoDecisionsOfASmallStepAreFaster) {
  Random random(11);
  const SolveOptions options;
  for (int i = 0; i < 25; ++i) {
    Graph graph = tight_step(random, 2, options);
    graph.bandwidth.slowdown = 0;  // EveryDecision counts no slowdown
    EXPECT_LE(covering_bound(graph, options, kLimit_s).seconds,
              EveryDecision(graph, options).best_s() * (1 + 1e-7))
        << i;
  }
}

TEST(CoveringBound, BoundsStepsThatAreTooLargeForAnIntegerProgram) {
  Random random(5);
  const SolveOptions options{.offload = false, .compress = false, .time_limit_s = 2};
  const Graph graph = tight_step(random, 250, options);
  ASSERT_GT(graph.nodes.size(), 500u);
  const JointSolution made = solve_jointly(graph, options, {.time_limit_s = 5, .relative_gap = 0});
  ASSERT_TRUE(made.report.too_large);
  EXPECT_EQ(made.report.programs, 1);
  EXPECT_GT(made.report.columns, 100);
  EXPECT_GT(made.report.bound_s, minimum_s(graph) * 1.001);
  EXPECT_LE(made.report.bound_s, made.solution.schedule.expected_s);
  EXPECT_THAT(bound_in_words(made.report, made.solution.schedule.expected_s),
              ::testing::HasSubstr("a linear program of"));
}

}  // namespace
}  // namespace dovetail::plan::covering_bound_test
