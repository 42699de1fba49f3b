// ctest-labels: threads
//
// Nodes run as threads of this process, over Gloo. Results are bitwise equal to one node, wherever
// ranges meet, and errors name the node.
#include "dovetail/hybrid/nodes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "dovetail/hybrid/kmeans_batch.h"
#include "dovetail/hybrid/kmeans_init.h"
#include "tests/hybrid/nodes_testing.h"
#include "tests/hybrid/runtime_testing.h"

namespace dovetail::hybrid::testing::nodes_test {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Runtime> pausing(double seconds) {
  return std::make_shared<Runtime>(
      executors({1}),
      RuntimeOptions{.binding = kUnbound, .around = [seconds](size_t, int64_t, auto& work) {
                       pause(seconds);
                       return once(work);
                     }});
}

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
    run_nodes(count, [&](int node, const std::shared_ptr<Group>& group) {
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
  run_nodes(2, [&](int node, const std::shared_ptr<Group>& group) {
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

Partial read_state(const Parameters&, const Shard& shard) {
  return {{rows_of(shard, 1).sum()}, static_cast<double>(shard.size)};
}
const TaskRegistration kReadState("test.read_state", at::kCPU, read_state);

TEST(Nodes, BringRowsOnceWhereverTheyAreRead) {
  constexpr int64_t kRows = 280;
  Numbers alone(kRows);
  run_task("test.advance", {factor(0)}, alone.shards());
  const double expected = run_task("test.read_state", {}, alone.shards()).tensors[0].item<double>();
  run_nodes(2, [&](int node, const std::shared_ptr<Group>& group) {
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

Partial fail_in_the_second_half(const Parameters&, const Shard& shard) {
  if (shard.begin >= 210) throw std::runtime_error("out of luck");
  if (shard.begin >= 140) throw UserError("row 140 is bad", "mend the row");
  return {{at::scalar_tensor(1.0)}, 1};
}
const TaskRegistration kFail("test.fail_in_the_second_half", at::kCPU, fail_in_the_second_half);

TEST(Nodes, AllThrowWhatOneDidAndNameIt) {
  run_nodes(3, [](int, const std::shared_ptr<Group>& group) {
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
    const std::vector<Shard> all = third.shards();
    EXPECT_NO_THROW(ours.run("test.advance", {factor(0)}, second.shards()))
        << "the failed job stays";
    try {
      ours.run("test.fail_in_the_second_half", {}, {all.begin() + 40, all.end()});
      ADD_FAILURE() << "added up";
    } catch (const CommError& error) {
      EXPECT_STREQ(error.what(), "test.fail_in_the_second_half failed on node 0: out of luck");
    }
  });
}

TEST(Nodes, RefuseToAddUpDifferentJobs) {
  enum class Other { kParameter, kRowMore, kShardMore, kValue };
  run_nodes(3, [&](int node, const std::shared_ptr<Group>& group) {
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
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("nodes 0 and 2 run different jobs: their data or "
                                            "parameters of test.advance differ"));
      }
    }
  });
}

TEST(Nodes, DrawCentresWithoutMovingDistances) {
  const at::Tensor x = raw_features(70000, 4, 9, 5);  // five shards
  KMeansData alone(x);
  const at::Tensor expected = initial_centres(alone, 12, KMeansInit::kPlusPlus, 3);
  run_nodes(2, [&](int, const std::shared_ptr<Group>& group) {
    const auto nodes = std::make_shared<Nodes>(group, pausing(0.01));
    KMeansData data(x, nodes);
    EXPECT_TRUE(at::equal(initial_centres(data, 12, KMeansInit::kPlusPlus, 3), expected));
    // Ranges follow the measured speeds. A busy machine changes these, so that a shard sometimes
    // moves. Computing all distances for each of the 11 further centres would read 770,000 rows.
    EXPECT_LE(nodes->report()[0].moved + nodes->report()[1].moved, 770000 / 4);
  });
}

void expect_same(const KMeansResult& ours, const KMeansResult& alone) {
  EXPECT_TRUE(at::equal(ours.centres, alone.centres));
  EXPECT_TRUE(at::equal(ours.labels, alone.labels));
  EXPECT_EQ(ours.inertia, alone.inertia);
  EXPECT_EQ(ours.iterations, alone.iterations);
}

TEST(Nodes, ClusterAsOneDoes) {
  const at::Tensor x = raw_features(70000, 4, 9, 5);  // five shards
  const auto cluster = [&](const std::shared_ptr<Workers>& workers, KMeansInit init) {
    KMeansData data(x, workers);
    at::Tensor centres =
        initial_centres(data, 20, init, 3);  // more than 16: passes over labels and squares
    centres[7] = 1e9;                        // loses its rows and takes the farthest one
    return lloyd(data, centres, {.iterations = 4});
  };
  const auto by_batches = [&](const std::shared_ptr<Workers>& workers) {
    KMeansData data(x, workers);
    return mini_batch(data, some_rows(x, 5), {.batch = 4000, .iterations = 6});
  };
  const KMeansResult plus = cluster(nullptr, KMeansInit::kPlusPlus),
                     parallel = cluster(nullptr, KMeansInit::kParallel),
                     batches = by_batches(nullptr);
  for (const int count : {2, 3})
    run_nodes(count, [&](int node, const std::shared_ptr<Group>& group) {
      const auto nodes = std::make_shared<Nodes>(group, pausing(node == 0 ? 0.001 : 0));
      expect_same(cluster(nodes, KMeansInit::kPlusPlus), plus);
      expect_same(cluster(nodes, KMeansInit::kParallel), parallel);
      expect_same(by_batches(nodes), batches);
    });
}

}  // namespace
}  // namespace dovetail::hybrid::testing::nodes_test
