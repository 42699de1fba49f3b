// A GPU and CPU cores share k-means.
// ctest-labels: cuda
#include <ATen/ATen.h>

#include "dovetail/base/gpu.h"
#include "dovetail/fit/kmeans/init.h"
#include "dovetail/jobs/runtime.h"
#include "tests/fit/testing.h"

namespace dovetail::fit::testing::kmeans_cuda_test {
namespace {

using jobs::parse_executors;
using jobs::Runtime;

TEST(RuntimeCuda, KMeansHasTheBitsOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  struct Case {
    int64_t rows, dim, centres;
  };
  for (const auto& [rows, dim, centres] : {Case{20 * kKMeansGrain, 20, 30}, Case{100'003, 100, 5},
                                           Case{50'001, 37, 1000}, Case{3000, 3, 2}}) {
    SCOPED_TRACE(fmt::format("{} x {}, K = {}", rows, dim, centres));
    const at::Tensor x = raw_features(rows, dim, 30, 1), start = some_rows(x, centres);
    KMeansData alone(x);
    const KMeansResult expected = lloyd(alone, start, {.iterations = 5, .tolerance = 0});
    for (const char* list : {"cuda:0", "cpu:1,cuda:0"}) {
      SCOPED_TRACE(list);
      const auto runtime = std::make_shared<Runtime>(parse_executors(list));
      KMeansData data(x, runtime);
      const KMeansResult result = lloyd(data, start, {.iterations = 5, .tolerance = 0});
      EXPECT_TRUE(at::equal(result.centres, expected.centres));
      EXPECT_TRUE(at::equal(result.labels, expected.labels));
      EXPECT_TRUE(at::equal(result.counts, expected.counts));
      EXPECT_EQ(result.inertia, expected.inertia);
      const auto report = runtime->report();
      EXPECT_GT(report.back().rows, 0) << "the GPU computed nothing";
      EXPECT_EQ(report.back().name, "cuda:0");
      EXPECT_FALSE(report.back().left_out);
    }
  }
}

TEST(RuntimeCuda, InitialCentresHaveTheBitsOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const at::Tensor x = raw_features(30'011, 12, 30, 1);
  for (const char* name : {"k-means++", "k-means-parallel"}) {
    SCOPED_TRACE(name);
    std::vector<at::Tensor> centres;
    for (const char* list : {"cpu:1", "cuda:0", "cpu:1,cuda:0"}) {
      KMeansData data(x, std::make_shared<Runtime>(parse_executors(list)));
      centres.push_back(initial_centres(data, 20, parse_kmeans_init(name), 7));
    }
    EXPECT_TRUE(at::equal(centres[1], centres[0]));
    EXPECT_TRUE(at::equal(centres[2], centres[0]));
  }
}

TEST(RuntimeCuda, MiniBatchesHaveTheBitsOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const at::Tensor x = raw_features(30'011, 12, 30, 1), start = some_rows(x, 20);
  const at::Tensor rows = at::arange(0, 30'011, 3, at::kLong);
  std::vector<jobs::Partial> partials;
  for (const char* list : {"cpu:1", "cuda:0"}) {
    KMeansData data(x, std::make_shared<Runtime>(parse_executors(list)));
    partials.push_back(data.assign_batch(rows, start));
  }
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(at::equal(partials[0].tensors[i], partials[1].tensors[i])) << i;
}

}  // namespace
}  // namespace dovetail::fit::testing::kmeans_cuda_test
