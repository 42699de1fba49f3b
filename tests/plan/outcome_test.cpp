#include "dovetail/plan/show/outcome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/record/step_graph.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/show/memory_use.h"
#include "dovetail/plan/show/trade_off.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "dovetail/plan/solve/placed.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/small_step.h"

namespace dovetail::plan::outcome_test {
namespace {

/// Draws one of the permitted decisions for a gap.
Keep draw_keep(Random& random, const Graph& graph, const Scheduler& scheduler, int gap, int codec) {
  const Gap& of = scheduler.gaps()[gap];
  const GraphTensor& tensor = graph.tensors[of.tensor];
  std::vector<Keep> ways = {Keep::kResident, Keep::kHost};
  if (!of.wraps && scheduler.can_be_recomputed(gap))
    ways.insert(ways.end(), {Keep::kAgain, Keep::kAgainEarly});
  if (!of.wraps && !resident_at_start(tensor.kind) &&
      (tensor.lossy_ok || graph.codecs[codec].max_error == 0))
    ways.push_back(Keep::kPacked);
  return ways[draw(random, 0, static_cast<int>(ways.size()) - 1)];
}

/// Random steps with plans of random decisions.
template <class Look>
int for_random_plans(uint64_t seed, const Look& look) {
  Random random(seed), of_host(seed);
  int plans = 0;
  for (int round = 0; round < 60; ++round) {
    Graph graph = random_step(random, draw(random, 2, 7));
    if (round % 2 == 0) add_state(random, graph);
    if (round % 3 != 0) let_updates_run_on_host(of_host, graph);
    graph.bandwidth.slowdown = 0.1 * draw(random, 0, 3);
    for (GraphNode& node : graph.nodes) node.layer = node.name.substr(1);
    const Scheduler scheduler(graph);
    for (int attempt = 0; attempt < 6; ++attempt) {
      Decisions decisions;
      for (size_t g = 0; g < scheduler.gaps().size(); ++g) {
        decisions.codec.push_back(draw(random, 0, 1));
        decisions.gaps.push_back(
            draw_keep(random, graph, scheduler, static_cast<int>(g), decisions.codec.back()));
      }
      for (int n = 0; n < std::ssize(graph.nodes); ++n) {
        const auto& algorithms = graph.nodes[n].algorithms;
        decisions.algorithms.push_back(draw(random, 0, static_cast<int>(algorithms.size()) - 1));
        for (const int t : algorithms[decisions.algorithms.back()].on_host)
          for (const int g : scheduler.gaps_on_host(n, t)) decisions.gaps[g] = Keep::kHost;
      }
      for (size_t g = 0; g < decisions.gaps.size(); ++g)
        if (scheduler.is_moot(decisions, static_cast<int>(g))) decisions.gaps[g] = Keep::kResident;
      const auto made = scheduler.schedule(decisions, graph.budget_bytes);
      if (!made) continue;
      ++plans;
      SCOPED_TRACE(fmt::format("round {}, attempt {}", round, attempt));
      look(graph, *made);
    }
  }
  return plans;
}

void expect_packed(const Graph& graph, const Plan& plan, const PlanOutcome& outcome, size_t codec) {
  PackedOutcome expected;
  for (const Action& action : plan.actions) {
    if (action.op != Op::kCompress || action.codec != static_cast<int>(codec)) continue;
    const auto bytes = static_cast<double>(graph.tensors[action.tensor].bytes);
    ++expected.times;
    expected.bytes += graph.tensors[action.tensor].bytes;
    expected.packed_bytes += static_cast<int64_t>(std::ceil(bytes * graph.codecs[codec].ratio));
  }
  const auto found =
      std::find_if(outcome.packed.begin(), outcome.packed.end(),
                   [&](const PackedOutcome& by) { return by.codec == static_cast<int>(codec); });
  ASSERT_EQ(found != outcome.packed.end(), expected.times > 0);
  if (expected.times == 0) return;
  EXPECT_EQ(found->times, expected.times);
  EXPECT_EQ(found->bytes, expected.bytes);
  EXPECT_EQ(found->packed_bytes, expected.packed_bytes);
}

/// Returns the time during which copies overlap with computation, over all pairs of them.
double beside_s(const Schedule& made) {
  double out = 0;
  for (size_t a = 0; a < made.plan.actions.size(); ++a)
    for (size_t b = 0; b < made.plan.actions.size(); ++b) {
      const Op copy = made.plan.actions[a].op, work = made.plan.actions[b].op;
      if (copy != Op::kOffload && copy != Op::kPrefetch) continue;
      if (work != Op::kCompute && work != Op::kCompress && work != Op::kDecompress) continue;
      const Timeline::Span &x = made.timeline.actions[a], &y = made.timeline.actions[b];
      out += std::max(0.0, std::min(x.end_s, y.end_s) - std::max(x.start_s, y.start_s));
    }
  return out;
}

TEST(Outcome, ItsPartsAreAllOfTheTimeThatAStepTakes) {
  int waited = 0, waits_for_copies = 0, updated = 0;
  const int plans = for_random_plans(1, [&](const Graph& graph, const Schedule& made) {
    const PlanOutcome outcome = outcome_of(graph, made.plan, made.timeline);
    EXPECT_NEAR(outcome.expected_s(), expected_s(graph, made.plan, made.timeline), 1e-9);
    EXPECT_GE(outcome.algorithms_s, 0);
    double again_s = 0, packed_s = 0, waited_s = 0, copied_s = 0;
    int64_t moved_bytes = 0, on_host_bytes = 0;
    for (const StorageOutcome& storage : outcome.storages) {
      if (std::find(storage.fates.begin(), storage.fates.end(), Fate::kOnHost) !=
          storage.fates.end())
        on_host_bytes += graph.tensors[storage.tensor].bytes;
      again_s += storage.again_s;
      packed_s += storage.packed_s;
      waited_s += storage.waited_s;
      copied_s += storage.copied_s;
    }
    EXPECT_NEAR(again_s, outcome.again_s, 1e-9);
    EXPECT_NEAR(packed_s, outcome.packed_s, 1e-9);
    EXPECT_LE(waited_s, outcome.waited_s + 1e-9);
    EXPECT_NEAR(graph.bandwidth.slowdown * beside_s(made), outcome.behind_s, 1e-9);
    waits_for_copies += beside_s(made) < copied_s - 1e-9 ? 1 : 0;
    for (const Action& action : made.plan.actions)
      if (action.op == Op::kOffload || action.op == Op::kPrefetch)
        moved_bytes += graph.tensors[action.tensor].bytes;
    EXPECT_EQ(moved_bytes, outcome.to_host_bytes + outcome.to_device_bytes);
    EXPECT_EQ(on_host_bytes, outcome.on_host_bytes);
    updated += on_host_bytes > 0 ? 1 : 0;
    for (size_t codec = 0; codec < graph.codecs.size(); ++codec)
      expect_packed(graph, made.plan, outcome, codec);
    waited += waited_s > 0 ? 1 : 0;
  });
  EXPECT_GE(plans, 100);
  EXPECT_GE(waited, 20);
  EXPECT_GE(waits_for_copies, 20);
  EXPECT_GE(updated, 20);
}

TEST(Outcome, RowsOfLayersAddUpToRowsOfFates) {
  for_random_plans(2, [&](const Graph& graph, const Schedule& made) {
    const PlanOutcome outcome = outcome_of(graph, made.plan, made.timeline);
    const auto rows = rows_by_fate(outcome, graph);
    std::vector<OutcomeRow> sums(rows.size());
    for (const OutcomeRow& row : rows_by_layer(outcome, graph)) {
      OutcomeRow& sum = sums[static_cast<size_t>(row.fate)];
      sum.storages += row.storages;
      sum.bytes += row.bytes;
      sum.copied_s += row.copied_s;
      sum.again_s += row.again_s;
      EXPECT_FALSE(why(row).empty());
    }
    for (size_t fate = 0; fate < rows.size(); ++fate) {
      EXPECT_EQ(rows[fate].storages, sums[fate].storages);
      EXPECT_EQ(rows[fate].bytes, sums[fate].bytes);
      EXPECT_NEAR(rows[fate].copied_s, sums[fate].copied_s, 1e-9);
      EXPECT_NEAR(rows[fate].again_s, sums[fate].again_s, 1e-9);
    }
  });
}

TEST(Outcome, WhyComparesTheFiguresOfTheGraph) {
  const OutcomeRow recomputed{
      .fate = Fate::kRecomputed, .storages = 1, .again_s = 2.1e-3, .round_trip_s = 8e-3};
  EXPECT_EQ(why(recomputed), "again 2.1 ms < copies 8 ms");
  const OutcomeRow hidden{.fate = Fate::kOffloaded,
                          .storages = 1,
                          .copied_s = 8e-3,
                          .round_trip_s = 8e-3,
                          .make_again_s = 12e-3};
  EXPECT_EQ(why(hidden), "copies 8 ms < again 12 ms; hidden behind computing");
  const OutcomeRow only{.fate = Fate::kOffloaded,
                        .storages = 2,
                        .made_once = 2,
                        .copied_s = 8e-3,
                        .waited_s = 1e-3,
                        .round_trip_s = 8e-3};
  EXPECT_EQ(why(only), "cannot be recomputed; copies 8 ms, computing waits 1 ms for them");
}

// Compares with the ledger of `check`, which has no purposes.
TEST(MemoryUse, AddsUpToWhatTheCheckerCharges) {
  const int plans = for_random_plans(3, [&](const Graph& graph, const Schedule& made) {
    const auto use = memory_use(graph, made.plan, made.timeline.actions);
    EXPECT_EQ(peak_of(use), made.timeline.peak_bytes);
    EXPECT_EQ(use.back().total(), made.timeline.memory.back().bytes);
    const auto bytes_at = [](const auto& points, double time_s, auto&& bytes) {
      int64_t out = 0;
      for (const auto& point : points)
        if (point.time_s <= time_s + 1e-11) out = bytes(point);
      return out;
    };
    for (const MemoryUse& at : use)
      EXPECT_EQ(
          bytes_at(use, at.time_s, [](const MemoryUse& u) { return u.total(); }),
          bytes_at(made.timeline.memory, at.time_s, [](const MemoryPoint& p) { return p.bytes; }));
    EXPECT_EQ(peak_of(thin_out(use, 5)), made.timeline.peak_bytes);
    EXPECT_LE(thin_out(use, 5).size(), 5);
  });
  EXPECT_GE(plans, 100);
}

TEST(MemoryUse, HoldsEachPackedFormFromItsMakingToItsEnd) {
  int with_packed = 0;
  for_random_plans(4, [&](const Graph& graph, const Schedule& made) {
    const auto use = memory_use(graph, made.plan, made.timeline.actions);
    double held = 0, expected = 0;  // bytes times seconds
    for (size_t i = 0; i + 1 < use.size(); ++i)
      held += static_cast<double>(use[i].bytes[static_cast<size_t>(Purpose::kCompressed)]) *
              (use[i + 1].time_s - use[i].time_s);
    std::vector<double> packed_bytes(graph.tensors.size());
    for (size_t a = 0; a < made.plan.actions.size(); ++a) {
      const Action& action = made.plan.actions[a];
      const Timeline::Span& span = made.timeline.actions[a];
      if (action.op == Op::kCompress) {
        const auto bytes = static_cast<double>(graph.tensors[action.tensor].bytes);
        packed_bytes[action.tensor] = std::ceil(bytes * graph.codecs[action.codec].ratio);
        expected -= packed_bytes[action.tensor] * span.start_s;
      } else if (action.op == Op::kFreePacked) {
        expected += std::exchange(packed_bytes[action.tensor], 0) * span.end_s;
      }
    }
    for (const double never_freed : packed_bytes) expected += never_freed * use.back().time_s;
    EXPECT_NEAR(held, expected, 1e-6 * std::max(expected, 1.0));
    with_packed += expected > 0 ? 1 : 0;
  });
  EXPECT_GE(with_packed, 20);
}

TEST(MemoryUse, KnowsGradientsOfWeightsFromThoseOfActivations) {
  SmallStep step;
  step();
  const StepGraph made = graph_of(capture([&] { return step(); }, step.tensors()));
  const auto purposes = purposes_of(made.graph);
  int64_t gradients = 0, weights = 0;
  for (size_t t = 0; t < purposes.size(); ++t) {
    (purposes[t] == Purpose::kGradients ? gradients : weights) +=
        purposes[t] == Purpose::kGradients || purposes[t] == Purpose::kWeights
            ? made.graph.tensors[t].bytes
            : 0;
    EXPECT_EQ(purposes[t] == Purpose::kOptimizer, made.graph.tensors[t].kind == TensorKind::kState);
  }
  EXPECT_EQ(gradients, weights);  // every weight has one gradient of its size
}

TEST(Fit, TwoRecordingsTellTheBytesOfAThird) {
  const auto recorded = [](int64_t batch) {
    SmallStep step(batch);
    step();
    return Sampled{batch, graph_of(capture([&] { return step(); }, step.tensors())).graph};
  };
  const Sampled a = recorded(8), b = recorded(16);
  for (const int64_t batch : {12, 24}) {
    const Graph expected = recorded(batch).graph, found = with_samples(a, b, batch);
    for (size_t t = 0; t < expected.tensors.size(); ++t)
      EXPECT_NEAR(static_cast<double>(found.tensors[t].bytes),
                  static_cast<double>(expected.tensors[t].bytes), 4096)
          << expected.tensors[t].id;
    const auto kept = static_cast<double>(keep_all_bytes(expected));
    EXPECT_NEAR(static_cast<double>(keep_all_bytes(found)), kept, 0.02 * kept);
  }
  Sampled other = b;
  other.graph.nodes.pop_back();
  EXPECT_THROW(with_samples(a, other, 96), UserError);
}

TEST(Fit, MeasuredTimesDoNotChangeTheAnswer) {
  const auto recorded = [](int64_t batch, double time_s) {
    SmallStep step(batch);
    step();
    Graph graph = graph_of(capture([&] { return step(); }, step.tensors())).graph;
    graph.bandwidth.to_host = 1e6 / time_s;
    for (GraphNode& node : graph.nodes) {
      node.algorithms[0].time_s = time_s;
      time_s *= 1.1;
    }
    return Sampled{batch, graph};
  };
  const Graph one = with_samples(recorded(8, 1e-3), recorded(16, 2e-3), 12);
  const Graph other = with_samples(recorded(8, 3e-3), recorded(16, 1e-4), 12);
  EXPECT_EQ(to_json(one), to_json(other));
  const SolveOptions options{.time_limit_s = 0};
  EXPECT_EQ(placed_floor_of(one, options).bytes, placed_floor_of(other, options).bytes);
}

// words: off
TEST(Fit, BelowTheFloorNamesTheOperationAndItsParts) {
  Graph graph;
  graph.tensors = {{.id = "x", .bytes = 3 << 20, .kind = TensorKind::kInput},
                   {.id = "y", .bytes = 2 << 20, .kind = TensorKind::kActivation}};
  graph.nodes = {{.name = "aten::convolution_backward:7",
                  .layer = "encoder.conv2",
                  .inputs = {0},
                  .outputs = {1},
                  .algorithms = {{"gemm", 1, 1 << 20}, {"direct", 2, 512}}}};
  graph.final = {1};
  graph.budget_bytes = 4 << 20;
  const UserError error = below_floor(graph, floor_of(graph, {}), "memory.budget", "less");
  EXPECT_STREQ(error.what(),
               "memory.budget = 4.00 MiB is below the floor of this step, 5.00 MiB\n"
               "  the largest single operation is convolution backward of `encoder.conv2` (inputs "
               "3.00 MiB, outputs 2.00 MiB, workspace 512 B)");
  // Without a choice the fastest algorithm decides.
  const SolveOptions fastest{.algorithms = false};
  EXPECT_STREQ(below_floor(graph, floor_of(graph, fastest), "memory.budget", "less").what(),
               "memory.budget = 4.00 MiB is below the floor of this step, 6.00 MiB\n"
               "  the largest single operation is convolution backward of `encoder.conv2` (inputs "
               "3.00 MiB, outputs 2.00 MiB, workspace 1.00 MiB)");
}

/// One operation that needs 5 MiB.
Graph relu_step(int64_t budget_bytes) {
  Graph graph;
  graph.tensors = {{.id = "x", .bytes = 3 << 20, .kind = TensorKind::kInput},
                   {.id = "y", .bytes = 2 << 20, .kind = TensorKind::kActivation}};
  graph.nodes = {
      {.name = "aten::relu:1", .inputs = {0}, .outputs = {1}, .algorithms = {{"captured", 1, 0}}}};
  graph.final = {1};
  graph.budget_bytes = budget_bytes;
  return graph;
}

TEST(Fit, BelowAFloorWithPlacesTellsOfTheGaps) {
  const Graph graph = relu_step(4 << 20);
  Floor floor = floor_of(graph, {});
  floor.gaps_bytes = 1 << 20;
  floor.bytes += floor.gaps_bytes;
  EXPECT_STREQ(below_floor(graph, floor, "memory.budget", "less").what(),
               "memory.budget = 4.00 MiB is below the floor of this step, 6.00 MiB\n"
               "  the largest single operation is relu (inputs 3.00 MiB, outputs 2.00 MiB, "
               "workspace 0 B), and gaps between places take 1.00 MiB");
}

TEST(Fit, ABudgetRightBelowTheFloorIsSaidInBytes) {
  const Graph graph = relu_step((5 << 20) - 1);
  EXPECT_THAT(below_floor(graph, floor_of(graph, {}), "memory.budget", "less").what(),
              ::testing::HasSubstr(
                  "memory.budget = 5242879 bytes is below the floor of this step, 5242880 bytes"));
}

TEST(Fit, WhatAnUpdateFindsOnTheHostIsNoPartOfTheFloor) {
  Graph graph;
  graph.tensors = {{.id = "w", .bytes = 1 << 20, .kind = TensorKind::kParam},
                   {.id = "moment", .bytes = 4 << 20, .kind = TensorKind::kState},
                   {.id = "gradient", .bytes = 1 << 20, .kind = TensorKind::kGrad}};
  graph.nodes = {{.name = "backward", .outputs = {2}, .algorithms = {{"only", 1, 0}}},
                 {.name = "dovetail::adamw:1",
                  .inputs = {2},
                  .mutates = {0, 1},
                  .algorithms = {{"device", 1, 0}, {"state on the host", 1, 0, {1}}}}};
  graph.final = {0, 1};
  graph.budget_bytes = 1 << 20;
  const auto said = [&](const SolveOptions& options) {
    return std::string(
        below_floor(graph, floor_of(graph, options), "memory.budget", "less").what());
  };
  EXPECT_EQ(
      said({}),
      "memory.budget = 1.00 MiB is below the floor of this step, 2.00 MiB\n"
      "  the largest single operation is adamw (inputs 2.00 MiB, outputs 0 B, workspace 0 B)");
  EXPECT_EQ(
      said({.algorithms = false}),
      "memory.budget = 1.00 MiB is below the floor of this step, 6.00 MiB\n"
      "  the largest single operation is adamw (inputs 6.00 MiB, outputs 0 B, workspace 0 B)");
}

// words: on

/// Random step whose tensor sizes are multiples of the address alignment.
Graph placeable_step(Random& random) {
  Graph graph = random_step(random, 5);
  for (GraphTensor& tensor : graph.tensors) tensor.bytes *= kAlignment;
  for (GraphNode& node : graph.nodes)
    for (Algorithm& algorithm : node.algorithms) algorithm.workspace_bytes *= kAlignment;
  graph.bandwidth.to_host *= kAlignment;
  graph.bandwidth.to_device *= kAlignment;
  for (Codec& codec : graph.codecs) {
    codec.encode_bytes_per_s *= kAlignment;
    codec.decode_bytes_per_s *= kAlignment;
  }
  return graph;
}

TEST(TradeOff, NeverRisesWithTheBudgetAndEachPointCanBeRun) {
  Random random(4);
  for (int round = 0; round < 4; ++round) {
    Graph graph = placeable_step(random);
    const int64_t floor = floor_of(graph, {}).bytes, all = check(graph, keep_all(graph)).peak_bytes;
    graph.budget_bytes = (floor + all) / 2;
    const PlacedSolution known = solve_placed(graph, {.time_limit_s = 0.5});
    const auto curve = trade_off(graph, {.time_limit_s = 0.2}, floor, all, 4, known);
    ASSERT_GE(curve.size(), 3);
    for (const TradeOff& point : curve) {
      EXPECT_GT(point.placed_bytes, 0);
      EXPECT_LE(point.placed_bytes, point.budget_bytes);
    }
    for (size_t i = 1; i < curve.size(); ++i) {
      EXPECT_GT(curve[i].budget_bytes, curve[i - 1].budget_bytes);
      EXPECT_LE(curve[i].expected_s, curve[i - 1].expected_s);
    }
    const auto asked = std::find_if(curve.begin(), curve.end(), [&](const TradeOff& point) {
      return point.budget_bytes == graph.budget_bytes;
    });
    ASSERT_NE(asked, curve.end());
    EXPECT_LE(asked->expected_s, known.solution.schedule.expected_s);
  }
}

}  // namespace
}  // namespace dovetail::plan::outcome_test
