#include "dovetail/plan/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/plan/profile.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan {
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
    EXPECT_EQ(*std::max_element(made->slot_bytes.begin(), made->slot_bytes.end()), plain.peak_bytes);
    EXPECT_TRUE(scheduler.schedule(all_resident(graph, scheduler), plain.peak_bytes));
    Misfit misfit;
    EXPECT_FALSE(scheduler.schedule(all_resident(graph, scheduler), plain.peak_bytes - 1, &misfit));
    EXPECT_EQ(misfit.bytes, 1);
  }
}

// Whatever is decided: a plan that check accepts, with a smaller peak when memory is given up, or a misfit that says
// why.
TEST(Schedule, AnyDecisionsGiveAPlanThatIsValid) {
  Random random(4);
  int made_plans = 0, smaller = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const Graph graph = random_step(random, draw(random, 2, 6));
    const Scheduler scheduler(graph);
    Decisions decisions = all_resident(graph, scheduler);
    for (int& algorithm : decisions.algorithms)
      algorithm = draw(random, 0,
                       static_cast<int>(graph.nodes[&algorithm - decisions.algorithms.data()].algorithms.size()) - 1);
    const auto kept = scheduler.schedule(decisions, graph.budget_bytes);
    ASSERT_TRUE(kept);
    for (size_t g = 0; g < decisions.gaps.size(); ++g) {
      if (draw(random, 0, 1) == 0) continue;
      const GraphTensor& tensor = graph.tensors[scheduler.gaps()[g].tensor];
      switch (draw(random, 0, 3)) {
        case 0:
          decisions.gaps[g] = Keep::kHost;
          break;
        case 1:
          if (scheduler.can_be_made_again(static_cast<int>(g))) decisions.gaps[g] = Keep::kAgain;
          break;
        case 2:
          if (scheduler.can_be_made_again(static_cast<int>(g))) decisions.gaps[g] = Keep::kAgainEarly;
          break;
        default:
          if (resident_at_start(tensor.kind)) break;
          decisions.gaps[g] = Keep::kPacked;
          decisions.codec[g] = tensor.lossy_ok ? draw(random, 0, 1) : 0;
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
    smaller += made->timeline.peak_bytes < kept->timeline.peak_bytes ? 1 : 0;
    // With less memory it waits for copies that leave, and is still valid.
    const int64_t least = made->timeline.peak_bytes - 8 * draw(random, 1, 4);
    const auto tight = scheduler.schedule(decisions, least);
    EXPECT_LE(tight ? tight->timeline.peak_bytes : 0, least);
  }
  EXPECT_GT(made_plans, 2500);
  EXPECT_GT(smaller, 800);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace dovetail::plan
