// Compares Lloyd's algorithm with a direct loop.
#include <cmath>

#include "tests/fit/testing.h"

namespace dovetail::fit::testing::lloyd_test {
namespace {

TEST(Lloyd, IsTheLoopOfItsDefinition) {
  const at::Tensor x = raw_features(900, 12, 5, 1);
  at::Tensor centres = some_rows(x, 5);
  KMeansData data(x);
  std::vector<LloydIteration> lines;
  const KMeansResult result = lloyd(data, centres, {.iterations = 200, .tolerance = 0},
                                    [&](const LloydIteration& line) { lines.push_back(line); });
  ASSERT_TRUE(result.converged);
  ASSERT_EQ(static_cast<int64_t>(lines.size()), result.iterations);
  at::Tensor before;
  for (const LloydIteration& line : lines) {
    const Reference step = assign_reference(x, centres);
    EXPECT_NEAR(line.inertia, step.inertia, 1e-9 * step.inertia) << line.iteration;
    if (before.defined()) {
      EXPECT_EQ(line.changed, (step.labels != before).sum().item<int64_t>()) << line.iteration;
    }
    before = step.labels;
    const at::Tensor next = step.sums / step.counts.unsqueeze(1);
    EXPECT_NEAR(line.shift, (next - centres).norm().item<double>(), 1e-9 * (1 + line.shift));
    centres = next;
  }
  expect_close(result.centres, centres, 1e-12);
  const Reference last = assign_reference(x, result.centres);
  EXPECT_TRUE(at::equal(result.labels, last.labels));
  EXPECT_TRUE(at::equal(result.counts, last.counts));
  EXPECT_NEAR(result.inertia, last.inertia, 1e-12 * last.inertia);
}

TEST(Lloyd, StopsAfterTheIterationsWithTheLabelsOfItsCentres) {
  const at::Tensor x = normal({2000, 8}, 1);
  KMeansData data(x);
  const KMeansResult result = lloyd(data, some_rows(x, 20), {.iterations = 2, .tolerance = 0});
  EXPECT_EQ(result.iterations, 2);
  EXPECT_FALSE(result.converged);
  EXPECT_TRUE(at::equal(result.labels, assign_reference(x, result.centres).labels));
  EXPECT_TRUE(at::equal(result.counts, assign_reference(x, result.centres).counts));
}

TEST(Lloyd, StopsWhenTheCentresMoveByLessThanTheTolerance) {
  const at::Tensor x = normal({3000, 6}, 1);
  KMeansData data(x);
  const double limit = 1e-3 * x.to(at::kDouble).var(0, false).mean().item<double>();
  std::vector<double> moved;
  const KMeansResult result =
      lloyd(data, some_rows(x, 10), {.tolerance = 1e-3},
            [&](const LloydIteration& line) { moved.push_back(line.shift * line.shift); });
  ASSERT_TRUE(result.converged);
  ASSERT_GE(moved.size(), 2U);
  EXPECT_LE(moved.back(), limit);
  for (size_t i = 0; i + 1 < moved.size(); ++i) EXPECT_GT(moved[i], limit) << i;
}

TEST(Lloyd, KeepsOrMovesACentreWithoutRows) {
  // Rows at 0, 1, 10; a centre at 1000 has none.
  const at::Tensor x = at::tensor({0.0f, 1.0f, 10.0f}).unsqueeze(1);
  const at::Tensor centres = at::tensor({0.5, 1000.0}, at::kDouble).unsqueeze(1);
  KMeansData data(x);
  const KMeansResult kept = lloyd(data, centres, {.empty = EmptyCluster::kKeep});
  EXPECT_EQ(kept.centres[1].item<double>(), 1000);
  EXPECT_EQ(kept.counts[1].item<int64_t>(), 0);
  EXPECT_NEAR(kept.centres[0].item<double>(), 11.0 / 3, 1e-12);
  const KMeansResult moved = lloyd(data, centres, {.empty = EmptyCluster::kReseed});
  EXPECT_EQ(moved.centres[1].item<double>(), 10);  // the farthest row
  EXPECT_EQ(moved.centres[0].item<double>(), 0.5);
  EXPECT_EQ(moved.inertia, 0.5);
}

TEST(Lloyd, LeavesCentresAloneWhereEveryRowIsOne) {
  const at::Tensor x = at::tensor({1.0f, 1.0f, 3.0f, 3.0f}).unsqueeze(1);
  KMeansData data(x);
  const KMeansResult result = lloyd(data, at::tensor({1.0, 3.0, 3.0}, at::kDouble).unsqueeze(1));
  EXPECT_EQ(result.inertia, 0);
  EXPECT_TRUE(at::equal(result.counts, at::tensor({2, 2, 0}, at::kLong)));
}

TEST(Lloyd, RefusesNoIterationsAndANegativeTolerance) {
  KMeansData data(normal({4, 3}, 1));
  const at::Tensor centres = normal({2, 3}, 1, at::kDouble);
  EXPECT_THROW(lloyd(data, centres, {.iterations = 0}), UserError);
  EXPECT_THROW(lloyd(data, centres, {.tolerance = -1}), UserError);
}

}  // namespace
}  // namespace dovetail::fit::testing::lloyd_test
