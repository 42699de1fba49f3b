#include "dovetail/plan/solve/plan_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/solve/placed.h"
#include "dovetail/plan/solve/search.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan::plan_cache_test {
namespace {

bool any(const Solution&) { return true; }

/// Returns a plan that offloads all permitted tensors. It needs little memory and is slow.
Solution all_offloaded(const Graph& graph, const SolveOptions& options) {
  const Search search(graph, options);
  Solution out{.decisions = search.all_offloaded(Keep::kHost, options),
               .budget_bytes = graph.budget_bytes};
  auto schedule = search.scheduler().schedule(out.decisions, graph.budget_bytes);
  if (!schedule) throw UserError("no plan", "");
  out.schedule = std::move(*schedule);
  return out;
}

class PlanCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    graph_ = random_step(random_, 5);
    floor_ = floor_of(graph_, {}).bytes;
    all_ = check(graph_, keep_all(graph_)).peak_bytes;
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  double expected_s(int64_t budget, const SolveOptions& options = {}) {
    graph_.budget_bytes = budget;
    return solve_known(cache_, graph_, options, any, all_offloaded).schedule.expected_s;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / "dovetail_plan_cache_test";
  const PlanCache cache_{folder_};
  Random random_{41};
  Graph graph_;
  int64_t floor_ = 0, all_ = 0;
};

TEST_F(PlanCacheTest, NoPlanIsSlowerThanOneMadeBeforeForAsMuchMemoryOrLess) {
  for (int round = 0; round < 6; ++round) {
    graph_ = random_step(random_, 3 + round % 3);
    floor_ = floor_of(graph_, {}).bytes;
    all_ = check(graph_, keep_all(graph_)).peak_bytes;
    std::vector<std::pair<int64_t, double>> before;
    int from_before = 0;
    for (int i = 0; i < 20; ++i) {
      graph_.budget_bytes = floor_ + (all_ - floor_) * draw(random_, 2, 10) / 10;
      // Some searches have more time than the others.
      const bool good = draw(random_, 0, 3) == 0;
      Solution made;
      try {
        made =
            solve_known(cache_, graph_, {.time_limit_s = 0.1}, any, good ? solve : all_offloaded);
      } catch (const UserError&) {
        continue;
      }
      EXPECT_LE(check(graph_, made.schedule.plan).peak_bytes, graph_.budget_bytes);
      EXPECT_LE(made.budget_bytes, graph_.budget_bytes);
      for (const auto& [budget, seconds] : before)
        if (budget <= graph_.budget_bytes) {
          EXPECT_LE(made.schedule.expected_s, seconds);
        }
      from_before +=
          !good && made.schedule.expected_s < all_offloaded(graph_, {}).schedule.expected_s ? 1 : 0;
      before.emplace_back(graph_.budget_bytes, made.schedule.expected_s);
    }
    EXPECT_GE(from_before, 1) << "round " << round;
  }
}

TEST_F(PlanCacheTest, TimesAndRatesMayChangeButNotTheStepNorItsTechniques) {
  graph_.budget_bytes = all_;
  const Solution known = solve_known(cache_, graph_, {}, any, solve);
  const double away_s = all_offloaded(graph_, {}).schedule.expected_s;
  ASSERT_LT(known.schedule.expected_s, away_s);
  EXPECT_DOUBLE_EQ(expected_s(all_), known.schedule.expected_s);
  const SolveOptions exact{.compress = false};
  EXPECT_DOUBLE_EQ(expected_s(all_, exact), all_offloaded(graph_, exact).schedule.expected_s);
  Graph other = graph_;
  for (GraphNode& node : graph_.nodes)
    for (Algorithm& algorithm : node.algorithms) algorithm.time_s *= 2;
  graph_.bandwidth.to_host *= 0.5;
  EXPECT_LT(expected_s(all_), all_offloaded(graph_, {}).schedule.expected_s);
  other.tensors.back().bytes += 8;
  EXPECT_TRUE(cache_.find(other, {}).empty());
  EXPECT_EQ(cache_.find(graph_, {}).size(), 1);
  EXPECT_TRUE(PlanCache({}).find(graph_, {}).empty());
}

TEST_F(PlanCacheTest, WhatIsFoundAgainIsWhatWasPut) {
  graph_.budget_bytes = (floor_ + all_) / 2;
  for (int i = 0; i < 40; ++i) {
    Decisions decisions = all_offloaded(graph_, {}).decisions;
    for (Keep& keep : decisions.gaps) keep = static_cast<Keep>(draw(random_, 0, 4));
    for (int& codec : decisions.codec) codec = draw(random_, 0, 1);
    cache_.put(graph_, {}, {.budget_bytes = 1000 + i / 2, .decisions = decisions});
    const auto found = cache_.find(graph_, {});
    EXPECT_EQ(found[0].budget_bytes, 1000 + i / 2);
    EXPECT_EQ(found[0].decisions.gaps, decisions.gaps);
    EXPECT_EQ(found[0].decisions.codec, decisions.codec);
    EXPECT_EQ(found[0].decisions.algorithms, decisions.algorithms);
    for (size_t k = 1; k < found.size(); ++k)
      EXPECT_LT(found[k].budget_bytes, found[k - 1].budget_bytes);
  }
  EXPECT_EQ(cache_.find(graph_, {}).size(), 20);
  for (int i = 0; i < 10; ++i) cache_.put(graph_, {}, {i, all_offloaded(graph_, {}).decisions});
  EXPECT_EQ(cache_.find(graph_, {}).size(), 24);
}

TEST_F(PlanCacheTest, AFileThatIsNoneOfOursIsNamed) {
  expected_s(all_);
  const std::filesystem::path file = std::filesystem::directory_iterator(folder_)->path();
  for (const char* text :
       {"{", "[]", R"({"version":2,"plans":[]})",
        R"({"version":1,"plans":[{"budget_bytes":1,"gaps":[9],"codecs":[0],"algorithms":[0]}]})",
        R"({"version":1,"plans":[{"budget_bytes":1,"gaps":[0],"codecs":[0],"algorithms":[0]}]})"}) {
    std::ofstream(file) << text;
    EXPECT_THAT([&] { cache_.find(graph_, {}); },
                ::testing::ThrowsMessage<UserError>(::testing::HasSubstr(file.string())))
        << text;
  }
}

// A packing leaves no gaps between the tensors of this step, so that plans that fit have places.
TEST_F(PlanCacheTest, PlacedPlansAreTakenUpAgain) {
  for (GraphTensor& tensor : graph_.tensors) tensor.bytes *= kAlignment;
  for (GraphNode& node : graph_.nodes)
    for (Algorithm& algorithm : node.algorithms) algorithm.workspace_bytes *= kAlignment;
  graph_.bandwidth.to_host *= kAlignment;
  graph_.bandwidth.to_device *= kAlignment;
  graph_.codecs.clear();
  graph_.budget_bytes = kAlignment * all_;
  const PlacedSolution first = solve_placed(graph_, {.time_limit_s = 0.5}, cache_);
  graph_.budget_bytes += 1 << 20;
  const PlacedSolution second = solve_placed(graph_, {.time_limit_s = 1e-6}, cache_);
  EXPECT_LE(second.solution.schedule.expected_s, first.solution.schedule.expected_s);
  EXPECT_LE(second.layout.bytes, graph_.budget_bytes);
}

}  // namespace
}  // namespace dovetail::plan::plan_cache_test
