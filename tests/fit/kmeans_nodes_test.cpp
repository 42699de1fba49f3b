// K-means on nodes that are threads of this process: the bits of one node.
// ctest-labels: threads
#include <ATen/ATen.h>

#include "dovetail/fit/kmeans/batch.h"
#include "dovetail/fit/kmeans/init.h"
#include "tests/fit/testing.h"
#include "tests/jobs/nodes_testing.h"
#include "tests/jobs/runtime_testing.h"

namespace dovetail::fit::testing::kmeans_nodes_test {
namespace {

using jobs::testing::pausing;
using jobs::testing::run_nodes;

TEST(KMeansOnNodes, DrawCentresWithoutMovingDistances) {
  const at::Tensor x = raw_features(70000, 4, 9, 5);  // five shards
  KMeansData alone(x);
  const at::Tensor expected = initial_centres(alone, 12, KMeansInit::kPlusPlus, 3);
  run_nodes(2, [&](int, const std::shared_ptr<comm::Group>& group) {
    const auto nodes = std::make_shared<jobs::Nodes>(group, pausing(0.01));
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

TEST(KMeansOnNodes, ClusterAsOneDoes) {
  const at::Tensor x = raw_features(70000, 4, 9, 5);  // five shards
  const auto cluster = [&](const std::shared_ptr<jobs::Workers>& workers, KMeansInit init) {
    KMeansData data(x, workers);
    at::Tensor centres =
        initial_centres(data, 20, init, 3);  // more than 16: passes over labels and squares
    centres[7] = 1e9;                        // loses its rows and takes the farthest one
    return lloyd(data, centres, {.iterations = 4});
  };
  const auto by_batches = [&](const std::shared_ptr<jobs::Workers>& workers) {
    KMeansData data(x, workers);
    return mini_batch(data, some_rows(x, 5), {.batch = 4000, .iterations = 6});
  };
  const KMeansResult plus = cluster(nullptr, KMeansInit::kPlusPlus),
                     parallel = cluster(nullptr, KMeansInit::kParallel),
                     batches = by_batches(nullptr);
  for (const int count : {2, 3})
    run_nodes(count, [&](int node, const std::shared_ptr<comm::Group>& group) {
      const auto nodes = std::make_shared<jobs::Nodes>(group, pausing(node == 0 ? 0.001 : 0));
      expect_same(cluster(nodes, KMeansInit::kPlusPlus), plus);
      expect_same(cluster(nodes, KMeansInit::kParallel), parallel);
      expect_same(by_batches(nodes), batches);
    });
}

}  // namespace
}  // namespace dovetail::fit::testing::kmeans_nodes_test
