// A GPU and CPU cores share k-means.
// ctest-labels: cuda
#include <ATen/ATen.h>

#include "dovetail/base/gpu.h"
#include "dovetail/jobs/runtime.h"
#include "tests/fit/testing.h"

namespace dovetail::fit::testing::kmeans_cuda_test {
namespace {

using jobs::parse_executors;
using jobs::Runtime;

TEST(RuntimeCuda, SharesKMeansWithTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const at::Tensor x = raw_features(20 * kKMeansGrain, 20, 30, 1), start = some_rows(x, 30);
  KMeansData alone(x);
  const KMeansResult expected = lloyd(alone, start, {.iterations = 5, .tolerance = 0});
  for (const char* list : {"cuda:0", "cpu:1,cuda:0"}) {
    const auto runtime = std::make_shared<Runtime>(parse_executors(list));
    KMeansData data(x, runtime);
    const KMeansResult result = lloyd(data, start, {.iterations = 5, .tolerance = 0});
    expect_close(result.centres, expected.centres, 1e-10);
    EXPECT_NEAR(result.inertia / expected.inertia, 1, 1e-12);
    EXPECT_EQ((result.labels != expected.labels).sum().item<int64_t>(), 0) << list;
    const auto report = runtime->report();
    EXPECT_GT(report.back().rows, 0) << "the GPU computed nothing";
    EXPECT_EQ(report.back().name, "cuda:0");
    EXPECT_FALSE(report.back().left_out);
  }
}

TEST(RuntimeCuda, OneGpuAloneHasTheSameBitsTwice) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const at::Tensor x = raw_features(5 * kKMeansGrain, 20, 30, 1), start = some_rows(x, 30);
  std::vector<KMeansResult> results;
  for (int i = 0; i < 2; ++i) {
    KMeansData data(x, std::make_shared<Runtime>(parse_executors("cuda:0")));
    results.push_back(lloyd(data, start, {.iterations = 5, .tolerance = 0}));
  }
  EXPECT_TRUE(at::equal(results[0].centres, results[1].centres));
  EXPECT_TRUE(at::equal(results[0].labels, results[1].labels));
}

}  // namespace
}  // namespace dovetail::fit::testing::kmeans_cuda_test
