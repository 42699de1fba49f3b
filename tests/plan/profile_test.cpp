#include "dovetail/plan/run/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/plan/record/algorithms.h"
#include "tests/base/temporary_folder.h"
#include "tests/ops/testing.h"
#include "tests/plan/conv_step.h"

namespace dovetail::plan::profile_test {
namespace {

class Profiled : public ::testing::Test {
 protected:
  Profiled() {
    step_();
    captured_ = capture([&] { return step_(); }, step_.tensors());
  }

  /// Returns a profile of the step as a new process would measure it.
  Profile profile() {
    graph_ = graph_of(captured_);
    ProfileCache cache(folder_.path());
    add_convolution_algorithms(captured_, graph_, cache);
    const Profile out = profile_nodes(captured_, graph_, 3, cache);
    cache.save();
    file_ = cache.file();
    return out;
  }
  int algorithms() const {
    size_t out = 0;
    for (const GraphNode& node : graph_.graph.nodes) out += node.algorithms.size();
    return static_cast<int>(out);
  }

  const dovetail::testing::Threads one_{1};
  ConvStep step_;
  CapturedStep captured_;
  StepGraph graph_;
  test::TemporaryFolder folder_;
  std::filesystem::path file_;
};

TEST_F(Profiled, TheSecondTimeNothingIsMeasured) {
  const auto start = step_.values();
  const Profile first = profile();
  EXPECT_EQ(first.known, 0);
  EXPECT_EQ(first.measured, algorithms());
  EXPECT_GT(first.measured, static_cast<int>(graph_.nodes.size()) + 10);
  const StepGraph measured = graph_;
  const auto trained = step_.values();
  EXPECT_FALSE(trained[0].equal(start[0])) << "no step ran";

  const Profile second = profile();
  EXPECT_EQ(second.measured, 0);
  EXPECT_EQ(second.known, first.measured);
  const auto after = step_.values();
  for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(after[i].equal(trained[i])) << "a step ran";
  for (size_t n = 0; n < graph_.nodes.size(); ++n)
    for (size_t a = 0; a < graph_.graph.nodes[n].algorithms.size(); ++a) {
      const Algorithm &was = measured.graph.nodes[n].algorithms[a],
                      &is = graph_.graph.nodes[n].algorithms[a];
      EXPECT_GT(is.time_s, 0);
      EXPECT_EQ(is.workspace_bytes, was.workspace_bytes)
          << graph_.graph.nodes[n].name << " " << is.name;
    }
  // The recorded allocations match the real ones.
  StepGraph unlimited = graph_;
  unlimited.graph.budget_bytes = int64_t{1} << 40;
  for (int algorithm = 0; algorithm < 3; ++algorithm) {
    Plan plan = keep_all(unlimited.graph);
    for (Action& action : plan.actions)
      if (action.op == Op::kCompute)
        action.algorithm = std::min(
            algorithm, static_cast<int>(graph_.graph.nodes[action.node].algorithms.size()) - 1);
    Executor(captured_, unlimited, plan, {}).run();
  }
}

TEST_F(Profiled, OnlyWhatIsNotKnownIsMeasured) {
  profile();
  nlohmann::json content = nlohmann::json::parse(read_file(file_));
  int removed = 0;
  for (auto it = content["entries"].begin(); it != content["entries"].end();) {
    const bool remove = it.key().find("winograd") != std::string::npos;
    removed += remove && it.key().starts_with("time of") ? 1 : 0;
    it = remove ? content["entries"].erase(it) : std::next(it);
  }
  EXPECT_GE(removed, 3);
  std::ofstream(file_) << content.dump();
  EXPECT_EQ(profile().measured, removed);
  EXPECT_EQ(profile().measured, 0);
}

TEST(Bandwidth, IsAtMostThatOfTheCopiesOfStepsByAPlan) {
  Graph graph;
  graph.bandwidth = {.to_host = 100, .to_device = 100};
  graph.tensors = {{.id = "a", .bytes = 60}, {.id = "b", .bytes = 20}};
  const Plan plan{.actions = {{.op = Op::kOffload, .tensor = 0},
                              {.op = Op::kOffload, .tensor = 1},
                              {.op = Op::kFree, .tensor = 0},
                              {.op = Op::kPrefetch, .tensor = 1}}};
  // To the host: 80 bytes in 1 + 1 s, then in 3 + 1 s, then in 5 + 5 s. Back: 20 bytes in 0.1 s
  // each time.
  std::vector<Executor::Run> runs;
  for (const auto& [first, second] : std::vector<std::pair<double, double>>{{1, 1}, {3, 1}, {5, 5}})
    runs.push_back({.seconds = 10, .actions = {{0, first}, {2, 2 + second}, {0, 9}, {4, 4.1}}});
  limit_bandwidth(graph, plan, runs);
  EXPECT_DOUBLE_EQ(graph.bandwidth.to_host, 20);
  EXPECT_DOUBLE_EQ(graph.bandwidth.to_device, 100) << "one large copy was slower than these";
  limit_bandwidth(graph, {}, runs);
  EXPECT_DOUBLE_EQ(graph.bandwidth.to_host, 20) << "a plan without copies";
}

TEST_F(Profiled, AnotherNumberOfThreadsIsAnotherMachine) {
  ProfileCache cache(folder_.path());
  cache.put("time of something", 1.0);
  cache.save();
  EXPECT_TRUE(ProfileCache(folder_.path()).find("time of something"));
  const dovetail::testing::Threads two(2);
  const ProfileCache other(folder_.path());
  EXPECT_FALSE(other.find("time of something"));
  EXPECT_NE(other.file(), cache.file());
}

TEST_F(Profiled, WhatIsNoCacheIsRefused) {
  profile();
  std::ofstream(file_) << R"({"version": 1, "machine": {"cpu": "another"}, "entries": {}})";
  EXPECT_THAT([&] { profile(); }, ::testing::ThrowsMessage<UserError>(
                                      ::testing::HasSubstr("its machine is not this one")));
  std::ofstream(file_) << "{";
  EXPECT_THAT([&] { profile(); },
              ::testing::ThrowsMessage<UserError>(::testing::HasSubstr(file_.filename().string())));
}

TEST_F(Profiled, KeysTellOperationsApart) {
  std::vector<std::string> keys;
  for (const CapturedOperation& operation : captured_.operations)
    if (operation.name.starts_with("aten::convolution"))
      keys.push_back(key_of({&operation, 1}).value());
  ASSERT_EQ(keys.size(), 2 * ConvStep::kLayers);
  for (size_t i = 0; i < keys.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]);
  // One number among the values.
  CapturedOperation other = captured_.operations[0];
  for (CapturedArgument& argument : other.arguments)
    if (argument.kind == CapturedArgument::Kind::kValue && argument.value.isIntList()) {
      argument.value = std::vector<int64_t>{7, 9};
      break;
    }
  EXPECT_NE(key_of({&other, 1}), key_of({captured_.operations.data(), 1}));
}

}  // namespace
}  // namespace dovetail::plan::profile_test
