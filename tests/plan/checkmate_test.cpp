#include "dovetail/plan/baselines/checkmate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/checkmate_vgg19.h"
#include "dovetail/plan/baselines/baselines.h"
#include "dovetail/plan/solve/solve.h"
#include "tests/plan/chain.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/stage_search.h"

namespace dovetail::plan::checkmate_test {
namespace {

const MilpOptions kExact = {.time_limit_s = 30, .relative_gap = 0};

/// A small step without a choice of algorithms, within a budget that may be too small.
Graph tight_step(Random& random, int layers) {
  Graph graph = seen_as(random_step(random, layers), Seen::kLeastWorkspace).graph;
  for (GraphNode& node : graph.nodes)
    if (draw(random, 0, 3) == 0) node.algorithms[0].workspace_bytes = 8 * draw(random, 1, 3);
  const int64_t all = check(graph, kept_plan(graph)).peak_bytes;
  const int64_t floor =
      floor_of(graph, {.offload = false, .compress = false, .across_steps = false}).bytes;
  graph.budget_bytes = floor + (all - floor) * draw(random, -1, 10) / 10;
  return graph;
}

TEST(Checkmate, ProgramFindsWhatTryingEverythingFinds) {
  Random random(31);
  int fits = 0, again = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const Graph graph = tight_step(random, draw(random, 2, 3));
    const double best = StageSearch(graph).least();
    const auto made = solve_checkmate(graph, kExact);
    ASSERT_EQ(made.has_value(), std::isfinite(best));
    if (!made) continue;
    ++fits;
    EXPECT_NEAR(made->time_s, best, 1e-6 * best);
    EXPECT_NEAR(made->bound_s, best, 1e-4 * best);
    const StageGraph stages(graph);
    const Timeline timeline =
        check(graph, plan_of(stages, made->stages, smallest_workspace_algorithms(graph)));
    EXPECT_LE(timeline.makespan_s, best * (1 + 1e-6));
    again += timeline.again > 0 ? 1 : 0;
    if (const auto rounded = round_checkmate(graph, kExact)) {
      EXPECT_GE(rounded->time_s, best * (1 - 1e-6));
      check(graph, plan_of(stages, rounded->stages, smallest_workspace_algorithms(graph)));
    }
  }
  EXPECT_GE(fits, 40);
  EXPECT_GE(again, 10);
}

TEST(Checkmate, StagesOfAPlanAreAPointOfTheProgramIfTheyFit) {
  Random random(32);
  int points = 0;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    const Graph graph = tight_step(random, 3);
    const StageGraph stages(graph);
    for (const Candidates which : {Candidates::kAll, Candidates::kArticulation}) {
      const auto chen = stages_for(stages, sqrt_checkpoints(chen_candidates(stages, which)));
      if (!chen) continue;
      Graph unlimited = graph;
      unlimited.budget_bytes = int64_t{1} << 40;
      const Plan plan = plan_of(stages, *chen, smallest_workspace_algorithms(graph));
      const Timeline timeline = check(unlimited, plan);
      const auto again = stages_of(stages, plan);
      ASSERT_TRUE(again.has_value());
      CheckmateProgram program(stages, static_cast<double>(timeline.peak_bytes));
      const auto point = program.point(*again);
      EXPECT_LE(program.program().violation(point), kMilpTolerance);
      Graph bare = unlimited;
      for (GraphNode& node : bare.nodes) node.algorithms[0].workspace_bytes = 0;
      EXPECT_EQ(stages.resident_bytes() + peak_held_bytes(stages, *again),
                check(bare, plan).peak_bytes);
      EXPECT_NEAR(program.seconds(program.program().objective(point)), timeline.makespan_s, 1e-9);
      CheckmateProgram less(stages, static_cast<double>(timeline.peak_bytes - 1));
      EXPECT_GT(less.program().violation(less.point(*again)), kMilpTolerance);
      ++points;
    }
  }
  EXPECT_GE(points, 50);
}

TEST(Checkmate, NothingRunsAgainOnceWhatItReadsHasChanged) {
  Graph graph;
  graph.tensors = {{.id = "w", .bytes = 1, .kind = TensorKind::kParam},
                   {.id = "a", .bytes = 1},
                   {.id = "b", .bytes = 1}};
  const std::vector<Algorithm> only = {{"only", 1, 0}};
  graph.nodes = {{.name = "f", .inputs = {0}, .outputs = {1}, .algorithms = only},
                 {.name = "update", .mutates = {0}, .algorithms = only},
                 {.name = "g", .inputs = {1}, .outputs = {2}, .algorithms = only}};
  EXPECT_TRUE(StageGraph(graph).may_run(1, 0));  // before the update, in its stage
  EXPECT_FALSE(StageGraph(graph).may_run(2, 0));
  EXPECT_FALSE(StageGraph(graph).may_run(2, 1));
  graph.nodes[1].mutates.clear();
  EXPECT_TRUE(StageGraph(graph).may_run(2, 0));
}

TEST(Chen, SqrtNTakesTwoRootsOfAChainAndOneForwardMore) {
  for (const int layers : {16, 25, 64, 100, 144}) {
    SCOPED_TRACE(layers);
    const Graph graph = chain(layers);
    const Timeline all = check(graph, kept_plan(graph));
    const Baseline made = chen_sqrt(graph, Candidates::kAll);
    ASSERT_TRUE(made.plan.has_value());
    const Timeline timeline = check(graph, *made.plan);
    const auto root = static_cast<int>(std::lround(std::sqrt(layers)));
    EXPECT_EQ(all.peak_bytes, layers + 1);
    EXPECT_LE(timeline.peak_bytes, 2 * root + 2);
    EXPECT_GT(timeline.peak_bytes, root);
    EXPECT_LE(timeline.again, layers);
    EXPECT_GE(timeline.again, layers - 2 * root);
    // On a chain every node is an articulation point.
    EXPECT_EQ(chen_candidates(StageGraph(graph), Candidates::kArticulation),
              chen_candidates(StageGraph(graph), Candidates::kAll));
  }
}

TEST(Chen, GreedyFitsWhereSqrtNDoes) {
  Graph graph = chain(64);
  graph.budget_bytes = check(graph, *chen_sqrt(graph, Candidates::kAll).plan).peak_bytes;
  const Baseline sqrt = chen_sqrt(graph, Candidates::kAll),
                 greedy = chen_greedy(graph, Candidates::kAll);
  ASSERT_TRUE(sqrt.plan && greedy.plan);
  EXPECT_LE(greedy.time_s, sqrt.time_s);
  graph.budget_bytes = 5;
  EXPECT_FALSE(chen_sqrt(graph, Candidates::kAll).plan);
  EXPECT_FALSE(chen_greedy(graph, Candidates::kAll).plan);
}

TEST(Chen, WhatPassesANodeByKeepsItFromBeingAnArticulationPoint) {
  Graph graph = chain(5);
  graph.nodes[3].inputs.push_back(1);  // l1 is read by l3 too
  EXPECT_THAT(chen_candidates(StageGraph(graph), Candidates::kArticulation),
              ::testing::ElementsAre(0, 1, 3, 4));
}

// Maximum batch of VGG19 within 16 GB at the cost of at most one additional forward pass.
// Published: 167 with everything kept, 197 by sqrt(n), 266 by the greedy strategy, 289 by the
// program. docs/design/plan.md explains these numbers.
class PublishedBatch : public ::testing::Test {
 protected:
  static int64_t batch(int64_t bytes_of_an_image, int times_parameters) {
    return (CheckmateVgg19::kMemory - times_parameters * 4 * CheckmateVgg19::kParameters) /
           bytes_of_an_image;
  }
  int64_t peak(const std::vector<int>& checkpoints, const ChenOptions& options) const {
    const auto stages = stages_for(graph_, checkpoints, options);
    const Timeline timeline =
        check(vgg_.graph, plan_of(graph_, *stages, smallest_workspace_algorithms(vgg_.graph)));
    EXPECT_LE(timeline.makespan_s, vgg_.ceiling());
    EXPECT_LE(timeline.peak_bytes, peak_held_bytes(graph_, *stages));
    return peak_held_bytes(graph_, *stages);
  }
  const CheckmateVgg19 vgg_ = checkmate_vgg19();
  const StageGraph graph_{vgg_.graph};
  const std::vector<int> all_ = chen_candidates(graph_, Candidates::kAll);
};

TEST_F(PublishedBatch, OfKeepingAll) { EXPECT_EQ(batch(peak(all_, {.liveness = false}), 4), 167); }

TEST_F(PublishedBatch, OfSqrtN) {
  EXPECT_EQ(batch(peak(sqrt_checkpoints(all_), {.liveness = false, .hold_gradients = true}), 4),
            197);
}

TEST_F(PublishedBatch, OfGreedyAndTheProgramAreOneFloor) {
  const int64_t floor = floor_of(vgg_.graph, {}).bytes;
  EXPECT_EQ(floor, int64_t{4} * 4 * 64 * 224 * 224);  // both of the first block, and both gradients
  EXPECT_EQ(batch(floor, 4), 266);
  EXPECT_EQ(batch(floor, 2), 289);
  Graph graph = vgg_.graph;
  graph.budget_bytes = floor;
  const Baseline greedy = chen_greedy(graph, Candidates::kAll, {.liveness = false});
  ASSERT_TRUE(greedy.plan);
  EXPECT_LE(greedy.time_s, vgg_.ceiling());
}

}  // namespace
}  // namespace dovetail::plan::checkmate_test
