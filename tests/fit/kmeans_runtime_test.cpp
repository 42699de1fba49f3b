// K-means on executors that fail, or whose threads return after their job has ended.
// ctest-labels: threads
#include <ATen/ATen.h>

#include "dovetail/base/log.h"
#include "tests/fit/testing.h"
#include "tests/jobs/runtime_testing.h"

namespace dovetail::fit::testing::kmeans_runtime_test {
namespace {

using jobs::Runtime;
using jobs::RuntimeOptions;
using jobs::testing::executors;
using jobs::testing::Faults;
using jobs::testing::kUnbound;
using jobs::testing::LateReader;

TEST(KMeans, HasTheSameBitsOnExecutorsThatFail) {
  set_log_level(LogLevel::kQuiet);
  const at::Tensor x = raw_features(81 * kKMeansGrain / 2, 5, 8, 1);
  const at::Tensor centres = some_rows(x, 8);
  KMeansData alone(x);
  std::vector<int64_t> changed, expected_changed;
  const KMeansResult expected =
      lloyd(alone, centres, {.iterations = 6},
            [&](const LloydIteration& line) { expected_changed.push_back(line.changed.value()); });
  Faults faults;
  KMeansData shared(
      x, std::make_shared<Runtime>(executors({1, 1, 1}),
                                   RuntimeOptions{.scheduling = {.min_lease_s = 0.003,
                                                                 .max_misses = 1 << 20,
                                                                 .max_attempts = 1 << 20},
                                                  .binding = kUnbound,
                                                  .around = std::ref(faults)}));
  const KMeansResult result =
      lloyd(shared, centres, {.iterations = 6},
            [&](const LloydIteration& line) { changed.push_back(line.changed.value()); });
  EXPECT_EQ(changed, expected_changed);
  EXPECT_TRUE(at::equal(result.centres, expected.centres));
  EXPECT_TRUE(at::equal(result.labels, expected.labels));
  EXPECT_EQ(result.inertia, expected.inertia);
  EXPECT_EQ(result.iterations, expected.iterations);
  set_log_level(LogLevel::kInfo);
}

TEST(KMeans, LetsALateThreadReadTheLabelsOfItsJob) {
  const at::Tensor x = raw_features(64 * kKMeansGrain, 3, 8, 1), centres = some_rows(x, 8);
  LateReader late;
  KMeansData data(x, std::make_shared<Runtime>(executors({1, 1}), late.options()));
  data.assign(centres);
  for (int i = 0; i < 3; ++i) data.distances(centres);
  const at::Tensor squares = data.distances(centres).squares.clone();
  late.arm();
  for (int i = 0; !late.slept(); ++i) {
    ASSERT_LT(i, 1000);
    data.distances(centres);
  }
  data.assign(centres.flip(0) + 1);
  data.forget_closest();
  const auto [block, result] = late.wake();
  EXPECT_TRUE(at::equal(result.rows[0],
                        squares.narrow(0, block.first * kKMeansGrain, block.count * kKMeansGrain)));
}

}  // namespace
}  // namespace dovetail::fit::testing::kmeans_runtime_test
