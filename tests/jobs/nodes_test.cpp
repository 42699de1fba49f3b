// ctest-labels: threads
//
// Nodes run as threads of this process, over Gloo. Results are bitwise equal to one node, wherever
// ranges meet, and errors name the node.
#include "dovetail/jobs/nodes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/jobs/nodes_testing.h"
#include "tests/jobs/runtime_testing.h"

namespace dovetail::jobs::testing::nodes_test {
namespace {

using ::testing::HasSubstr;

/// Expected results of run_task on `rows` rows, job by job, and the final rows.
struct Expected {
  explicit Expected(int64_t rows) : numbers(rows) {
    for (int64_t i = 0; i < kJobs; ++i)
      sums.push_back(
          run_task("test.advance", {factor(i)}, numbers.shards()).tensors[0].item<double>());
  }
  void expect_of(Nodes& nodes) const {
    Numbers ours(numbers.resident.tensor(0).size(0));
    for (int64_t i = 0; i < kJobs; ++i) {
      const Partial sum = nodes.run("test.advance", {factor(i)}, ours.shards());
      EXPECT_EQ(sum.tensors[0].item<double>(), sums[static_cast<size_t>(i)]) << "job " << i;
      EXPECT_EQ(sum.weight, static_cast<double>(ours.state().size(0)));
    }
    EXPECT_TRUE(at::equal(nodes.rows(ours.resident, 1), numbers.state()));
  }

  static constexpr int64_t kJobs = 4;
  Numbers numbers;
  std::vector<double> sums;
};

TEST(Nodes, HaveTheBitsOfOneForAnyNumberOfThem) {
  const Expected few(17), many(300);  // 3 shards, and 43
  for (const int count : {1, 2, 3, 4})
    run_nodes(count, [&](int node, const std::shared_ptr<comm::Group>& group) {
      SCOPED_TRACE(fmt::format("node {} of {}", node, count));
      for (const auto& executors : {std::shared_ptr<Runtime>(), pausing(0)}) {
        Nodes nodes(group, executors);
        few.expect_of(nodes);
        many.expect_of(nodes);
      }
    });
}

TEST(Nodes, ShareByTheirSpeedAndRowsFollow) {
  constexpr int64_t kRows = 280, kJobs = 6;  // 40 shards
  Numbers alone(kRows);
  for (int64_t i = 0; i < kJobs; ++i) run_task("test.advance", {factor(i)}, alone.shards());
  run_nodes(2, [&](int node, const std::shared_ptr<comm::Group>& group) {
    Nodes ours(group, pausing(node == 0 ? 0.012 : 0.003));
    Numbers numbers(kRows);
    for (int64_t i = 0; i < kJobs; ++i) ours.run("test.advance", {factor(i)}, numbers.shards());
    // Gets half of the first job, then about a fifth.
    const std::vector<Nodes::Report>& report = ours.report();
    EXPECT_EQ(report[0].rows + report[1].rows, kRows * kJobs);
    EXPECT_LT(report[0].rows, kRows * kJobs * 2 / 5);
    EXPECT_GT(report[0].rows, kRows / 2);
    EXPECT_GT(report[1].moved, kRows / 5)
        << "of the first job's rows node 1 computes more in the second";
    EXPECT_LT(report[1].moved, kRows) << "rows move where boundaries do, not with every job";
    EXPECT_TRUE(at::equal(ours.rows(numbers.resident, 1), alone.state()));
  });
}

Partial read_state(const Parameters&, const Shards& shard) {
  return {{rows_of(shard, 1).sum()}, static_cast<double>(shard.size)};
}
const TaskRegistration kReadState("test.read_state", at::kCPU, read_state);

TEST(Nodes, BringRowsOnceWhereverTheyAreRead) {
  constexpr int64_t kRows = 280;
  Numbers alone(kRows);
  run_task("test.advance", {factor(0)}, alone.shards());
  const double expected = run_task("test.read_state", {}, alone.shards()).tensors[0].item<double>();
  run_nodes(2, [&](int node, const std::shared_ptr<comm::Group>& group) {
    Nodes ours(group, pausing(node == 0 ? 0.012 : 0.003));
    Numbers numbers(kRows);
    ours.run("test.advance", {factor(0)},
             numbers.shards());  // speeds are unknown: each node gets half
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(ours.run("test.read_state", {}, numbers.shards()).tensors[0].item<double>(),
                expected);
    EXPECT_GT(ours.report()[1].moved, 0);
    EXPECT_LE(ours.report()[1].moved, kRows / 2) << "rows came more than once";
  });
}

/// Sum and maximum of each shard.
Partial describe_shards(const Parameters&, const Shards& shards) {
  const at::Tensor x = rows_of(shards, 0);
  std::vector<at::Tensor> rows;
  for (const at::Tensor& shard : x.split(shards.grain))
    rows.push_back(at::stack({shard.sum(), shard.max()}));
  return {{}, static_cast<double>(shards.size), at::stack(rows)};
}
const TaskRegistration kDescribe("test.describe_shards", at::kCPU, describe_shards, {},
                                 Takes::kBlock);

TEST(Nodes, KeepResultsOfShardsInTheirOrder) {
  for (const int64_t rows : {5, 300}) {  // one shard, and 43
    Numbers numbers(rows);
    const Partial expected = describe_shards({}, numbers.shards());
    EXPECT_TRUE(at::equal(run_task("test.describe_shards", {}, numbers.shards()).of_shards,
                          expected.of_shards));
    for (const int count : {1, 2, 3})
      run_nodes(count, [&](int, const std::shared_ptr<comm::Group>& group) {
        for (const auto& executors : {std::shared_ptr<Runtime>(), pausing(0)}) {
          Nodes nodes(group, executors);
          Numbers ours(rows);
          const Partial all = nodes.run("test.describe_shards", {}, ours.shards());
          EXPECT_TRUE(at::equal(all.of_shards, expected.of_shards));
          EXPECT_EQ(all.weight, expected.weight);
        }
      });
  }
}

Partial fail_in_the_second_half(const Parameters&, const Shards& shard) {
  if (shard.begin >= 210) throw std::runtime_error("out of luck");
  if (shard.begin >= 140) throw UserError("row 140 is bad", "mend the row");
  return {{at::scalar_tensor(1.0)}, 1};
}
const TaskRegistration kFail("test.fail_in_the_second_half", at::kCPU, fail_in_the_second_half);

TEST(Nodes, AllThrowWhatOneDidAndNameIt) {
  run_nodes(3, [](int, const std::shared_ptr<comm::Group>& group) {
    Nodes ours(group, nullptr);
    Numbers numbers(280);
    try {
      ours.run("test.fail_in_the_second_half", {}, numbers.shards());
      ADD_FAILURE() << "added up";
    } catch (const UserError& error) {  // node 1 comes first
      EXPECT_STREQ(error.what(), "test.fail_in_the_second_half failed on node 1: row 140 is bad");
      EXPECT_EQ(error.help(), "mend the row");
    }
    Numbers second(210), third(560);
    const Shards all = third.shards();
    EXPECT_NO_THROW(ours.run("test.advance", {factor(0)}, second.shards()))
        << "the failed job stays";
    try {
      ours.run("test.fail_in_the_second_half", {}, all.part(40, 40));
      ADD_FAILURE() << "added up";
    } catch (const comm::CommError& error) {
      EXPECT_STREQ(error.what(), "test.fail_in_the_second_half failed on node 0: out of luck");
    }
  });
}

TEST(Nodes, RefuseToAddUpDifferentJobs) {
  enum class Other { kParameter, kRowMore, kShardMore, kValue };
  run_nodes(3, [&](int node, const std::shared_ptr<comm::Group>& group) {
    for (const Other other :
         {Other::kParameter, Other::kRowMore, Other::kShardMore, Other::kValue}) {
      const bool differs = node == 2;
      Nodes ours(group, nullptr);
      int64_t rows = 278;  // 40 shards, the last of five rows
      if (differs && other == Other::kRowMore) rows = 279;
      if (differs && other == Other::kShardMore) rows = 282;
      Numbers numbers(rows);
      if (differs && other == Other::kValue) numbers.resident.tensor(0)[270] += 1e-9;
      try {
        ours.run("test.advance", {factor(differs && other == Other::kParameter ? 1 : 0)},
                 numbers.shards());
        ADD_FAILURE() << "added up";
      } catch (const comm::CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("nodes 0 and 2 run different jobs: their data or "
                                            "parameters of test.advance differ"));
      }
    }
  });
}

}  // namespace
}  // namespace dovetail::jobs::testing::nodes_test
