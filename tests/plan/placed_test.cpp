#include "dovetail/plan/solve/placed.h"

#include <gtest/gtest.h>

#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "dovetail/plan/solve/search.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan::placed_test {
namespace {

/// Random step whose tensor sizes are multiples of the address alignment.
Graph placed_step(Random& random, int layers) {
  Graph graph = random_step(random, layers);
  if (draw(random, 0, 1) == 0) add_state(random, graph);
  for (GraphTensor& tensor : graph.tensors) tensor.bytes = planned_bytes(tensor.bytes * 100);
  for (GraphNode& node : graph.nodes)
    for (Algorithm& algorithm : node.algorithms) algorithm.workspace_bytes *= 96;
  graph.bandwidth.to_host *= 100;
  graph.bandwidth.to_device *= 100;
  for (Codec& codec : graph.codecs)
    codec.encode_bytes_per_s *= 100, codec.decode_bytes_per_s *= 100;
  return graph;
}

/// Returns the bytes of the places if every permitted tensor is offloaded and fetched only when
/// needed. Returns 0 without a schedule.
int64_t least_placed_bytes(const Graph& graph, const SolveOptions& options) {
  const Search search(graph, options);
  const auto schedule = search.scheduler().schedule(search.all_offloaded(Keep::kHost, options),
                                                    floor_of(graph, options).bytes);
  return schedule ? lay_out(graph, schedule->plan, schedule->timeline).bytes + graph.base_bytes : 0;
}

TEST(Placed, ThereIsAnAnswerWhereEverythingAwayHasPlaces) {
  Random random(31);
  int asked = 0, tight = 0;
  for (int round = 0; round < 150; ++round) {
    Graph graph = placed_step(random, draw(random, 4, 12));
    const SolveOptions options{.fetches_wait = false, .time_limit_s = 0};
    const int64_t floor = floor_of(graph, options).bytes;
    graph.budget_bytes = floor;
    const int64_t least = least_placed_bytes(graph, options);
    if (least == 0) continue;
    graph.budget_bytes = least + (draw(random, 0, 1) == 0 ? 0 : floor / 20);
    ++asked;
    tight += least > floor ? 1 : 0;
    SCOPED_TRACE(round);
    EXPECT_NO_THROW({
      const PlacedSolution made = solve_placed(graph, options);
      EXPECT_LE(made.layout.bytes + graph.base_bytes, graph.budget_bytes);
      check(graph, made.solution.schedule.plan);
    });
  }
  RecordProperty("steps", fmt::format("{}; {} of them take more with places", asked, tight));
  EXPECT_GE(asked, 100);
}

TEST(Placed, EachBudgetFromThePlacedFloorOnHasAPlan) {
  Random random(33);
  int with_gaps = 0;
  for (int round = 0; round < 120; ++round) {
    SCOPED_TRACE(round);
    Graph graph = placed_step(random, draw(random, 4, 12));
    const SolveOptions options{
        .offload = round % 3 > 0, .compress = round % 3 > 1, .time_limit_s = 0};
    const Floor floor = placed_floor_of(graph, options);
    EXPECT_EQ(floor.bytes, floor_of(graph, options).bytes + floor.gaps_bytes);
    with_gaps += floor.gaps_bytes > 0 ? 1 : 0;
    for (const int64_t more : {int64_t{0}, int64_t{64}, floor.bytes / 10}) {
      graph.budget_bytes = floor.bytes + more;
      const PlacedSolution made = solve_placed(graph, options);
      EXPECT_LE(made.bytes, graph.budget_bytes);
      EXPECT_EQ(made.bytes, made.layout.bytes + graph.base_bytes);
      check(graph, made.solution.schedule.plan);
    }
    graph.budget_bytes = floor_of(graph, options).bytes - 1;
    EXPECT_THROW(solve_placed(graph, options), UserError);
  }
  EXPECT_GE(with_gaps, 10);
}

// `dovetail plan --fits` and training record a step at different times. Both must agree.
TEST(Placed, FloorForABudgetDoesNotDependOnTimes) {
  Random random(34);
  int too_small = 0;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    Graph graph = placed_step(random, draw(random, 4, 12));
    const SolveOptions options{.offload = false, .compress = false, .time_limit_s = 0};
    const int64_t floor = floor_of(graph, options).bytes, all = keep_all_bytes(graph);
    graph.budget_bytes = floor + (all - floor) * draw(random, 0, 6) / 60;
    const int64_t needs = floor_for_budget(graph, options, graph.budget_bytes).bytes;
    Graph slower = graph;
    for (GraphNode& node : slower.nodes)
      for (Algorithm& algorithm : node.algorithms) algorithm.time_s *= draw(random, 1, 9);
    EXPECT_EQ(floor_for_budget(slower, options, graph.budget_bytes).bytes, needs);
    if (needs > graph.budget_bytes) {
      ++too_small;
      continue;
    }
    EXPECT_LE(solve_placed(graph, options).bytes, graph.budget_bytes);
    EXPECT_LE(solve_placed(slower, options).bytes, graph.budget_bytes);
  }
  EXPECT_GE(too_small, 5);
  EXPECT_LE(too_small, 95);
}

// A place belongs to one tensor at a time of the simulation. So all places together are at least as
// large as the simulated memory.
TEST(Placed, PlacesAreNoLessThanThePeakOfTheSimulation) {
  Random random(32);
  int made = 0;
  for (int round = 0; round < 400; ++round) {
    const Graph graph = placed_step(random, draw(random, 4, 12));
    const Scheduler scheduler(graph, /*fetches_wait=*/false);
    Decisions decisions{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                        .codec = std::vector<int>(scheduler.gaps().size()),
                        .algorithms = std::vector<int>(graph.nodes.size())};
    for (size_t g = 0; g < decisions.gaps.size(); ++g)
      if (draw(random, 0, 2) > 0) decisions.gaps[g] = Keep::kHost;
    const auto loose = scheduler.schedule(decisions, graph.budget_bytes);
    if (!loose) continue;
    const int64_t less = loose->timeline.peak_bytes * draw(random, 80, 100) / 100;
    const auto schedule = scheduler.schedule(decisions, less);
    if (!schedule) continue;
    ++made;
    const Layout layout = lay_out(graph, schedule->plan, schedule->timeline);
    EXPECT_GE(layout.bytes + graph.base_bytes, schedule->timeline.peak_bytes) << "round " << round;
  }
  EXPECT_GE(made, 200);
}

}  // namespace
}  // namespace dovetail::plan::placed_test
