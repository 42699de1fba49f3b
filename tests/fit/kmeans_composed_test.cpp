// GPU tasks are composed of ATen operations, which run on any device. Here they run on the CPU and
// are compared with the CPU's own tasks.
#include <ATen/ATen.h>

#include "dovetail/jobs/task.h"
#include "tests/fit/testing.h"

namespace dovetail::fit::testing::kmeans_composed_test {
namespace {

/// Resident rows with labels and squared distances from a previous set of centres.
struct Rows {
  explicit Rows(const at::Tensor& x)
      : data({x, at::empty({x.size(0)}, at::kFloat), at::zeros({x.size(0)}, at::kInt),
              at::full({x.size(0)}, 1e30, at::kDouble)}) {}
  jobs::Partial run(const std::string& task, c10::DeviceType kind,
                    const jobs::Parameters& parameters) const {
    return jobs::find_task(task, kind).run(parameters, data.shards(1 << 20));
  }

  jobs::ResidentData data;
};

TEST(KMeansComposed, TasksAreThoseOfTheCpu) {
  const at::Tensor x = raw_features(3000, 7, 12, 3), shift = x.mean(0);
  const at::Tensor centres = some_rows(x, 12), points = some_rows(x, 3);
  const Rows ours(x), theirs(x);
  const std::vector<std::pair<std::string, jobs::Parameters>> jobs = {
      {"kmeans.norms", {shift}},
      {"kmeans.assign", {centres, shift}},
      {"kmeans.distances", {centres}},
      {"kmeans.potentials", {points, shift}},
      {"kmeans.include", {points, at::scalar_tensor(1, at::kLong), shift}}};
  for (const auto& [task, parameters] : jobs) {
    SCOPED_TRACE(task);
    EXPECT_EQ(jobs::find_task(task, at::kCUDA).writes, jobs::find_task(task, at::kCPU).writes);
    const jobs::Partial composed = ours.run(task, at::kCUDA, parameters),
                        expected = theirs.run(task, at::kCPU, parameters);
    EXPECT_EQ(composed.weight, expected.weight);
    ASSERT_EQ(composed.tensors.size(), expected.tensors.size());
    for (size_t i = 0; i < expected.tensors.size(); ++i) {
      ASSERT_EQ(composed.tensors[i].scalar_type(), expected.tensors[i].scalar_type());
      expect_close(composed.tensors[i], expected.tensors[i], 1e-12);
    }
    EXPECT_TRUE(
        at::equal(ours.data.tensor(KMeansData::kLabels), theirs.data.tensor(KMeansData::kLabels)));
    expect_close(ours.data.tensor(KMeansData::kSquares), theirs.data.tensor(KMeansData::kSquares),
                 1e-12);
    // At least the norm, at most some ulp above.
    const at::Tensor norms = (x.to(at::kDouble) - shift.to(at::kDouble)).square().sum(1).sqrt();
    EXPECT_TRUE((ours.data.tensor(KMeansData::kNorms).to(at::kDouble) >= norms).all().item<bool>());
    expect_close(ours.data.tensor(KMeansData::kNorms), theirs.data.tensor(KMeansData::kNorms),
                 1e-6);
  }
}

TEST(KMeansComposed, CutsRowsWhereThereAreManyCentres) {
  const at::Tensor x = normal({3000, 2}, 3), shift = x.mean(0);
  // More than kElements with 3000 rows. In float64, so that no two centres are equally near.
  const at::Tensor centres = normal({12000, 2}, 4, at::kDouble);
  const Rows ours(x), theirs(x);
  theirs.run("kmeans.norms", at::kCPU, {shift});
  const jobs::Partial composed = ours.run("kmeans.assign", at::kCUDA, {centres, shift});
  const jobs::Partial expected = theirs.run("kmeans.assign", at::kCPU, {centres, shift});
  for (size_t i = 0; i < expected.tensors.size(); ++i)
    expect_close(composed.tensors[i], expected.tensors[i], 1e-12);
  EXPECT_EQ((ours.data.tensor(KMeansData::kLabels) != theirs.data.tensor(KMeansData::kLabels))
                .sum()
                .item<int64_t>(),
            0);
}

TEST(KMeansComposed, BatchesAreThoseOfTheCpu) {
  const at::Tensor x = raw_features(500, 5, 4, 3), shift = x.mean(0), centres = some_rows(x, 4);
  const jobs::ResidentData batch({at::arange(0, 500, 3, at::kLong)}, 0, {x});
  const jobs::Shards all = batch.shards(500);
  const jobs::Partial composed =
      jobs::find_task("kmeans.batch", at::kCUDA).run({centres, shift}, all);
  const jobs::Partial expected =
      jobs::find_task("kmeans.batch", at::kCPU).run({centres, shift}, all);
  for (size_t i = 0; i < 3; ++i) expect_close(composed.tensors[i], expected.tensors[i], 1e-12);
}

}  // namespace
}  // namespace dovetail::fit::testing::kmeans_composed_test
