// The source of the GPU's k-means kernels runs on the CPU (cuda_on_cpu.h), behind the GPU's tasks.
// Results must have the bits of the CPU's tasks.
#include "tests/fit/cuda_on_cpu.h"
// The kernels need the definitions above.
#include <ATen/ATen.h>

#include "dovetail/fit/cuda/kmeans.cu"
#include "dovetail/jobs/task.h"
#include "tests/fit/testing.h"
#undef __host__
#undef __global__
#undef __device__
#undef __shared__
#undef __align__
#undef __launch_bounds__

namespace dovetail::fit::testing::kmeans_kernels_test {
namespace {

using jobs::BlockSum;

class KMeansKernels : public ::testing::Test {
 protected:
  KMeansKernels() {
    static const CudaKernels kOnCpu = {
        .squares = [](const CudaSquares& p) { cuda::squares(p, nullptr); },
        .nearest = [](const CudaAssign& p) { cuda::nearest(p, nullptr); },
        .sums = [](const CudaAssign& p, int64_t first, int64_t shards,
                   double* sums) { cuda::sums(p, first, shards, sums, nullptr); },
        .add_tree = [](double* sums, int64_t place, int64_t shards,
                       int64_t width) { cuda::add_tree(sums, place, shards, width, nullptr); }};
    use_cuda_kernels(kOnCpu);
  }
};

struct Rows {
  explicit Rows(const at::Tensor& x, const at::Tensor& weights = {})
      : data(tensors_of(x, weights)) {}
  static std::vector<at::Tensor> tensors_of(const at::Tensor& x, const at::Tensor& weights) {
    std::vector<at::Tensor> tensors = {x, at::zeros({x.size(0)}, at::kFloat),
                                       at::full({x.size(0)}, -1, at::kInt),
                                       at::full({x.size(0)}, HUGE_VAL, at::kDouble)};
    if (weights.defined()) tensors.push_back(weights);
    return tensors;
  }
  std::vector<BlockSum> run(const std::string& task, c10::DeviceType kind,
                            const jobs::Parameters& parameters) const {
    return jobs::call_task(jobs::find_task(task, kind), parameters, data.shards(kKMeansGrain), 0);
  }

  jobs::ResidentData data;
};

void expect_same(const jobs::Partial& ours, const jobs::Partial& expected) {
  EXPECT_EQ(ours.weight, expected.weight);
  ASSERT_EQ(ours.of_shards.defined(), expected.of_shards.defined());
  if (expected.of_shards.defined()) {
    EXPECT_TRUE(at::equal(ours.of_shards, expected.of_shards));
  }
  ASSERT_EQ(ours.tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < expected.tensors.size(); ++i) {
    ASSERT_EQ(ours.tensors[i].scalar_type(), expected.tensors[i].scalar_type());
    EXPECT_TRUE(at::equal(ours.tensors[i], expected.tensors[i])) << "tensor " << i;
  }
}

/// Runs all tasks of a fit on both, and compares partials and rows.
void compare(const at::Tensor& x, const at::Tensor& centres, const at::Tensor& weights = {}) {
  const at::Tensor shift = x.mean(0),
                   points = centres.narrow(0, 0, std::min<int64_t>(5, centres.size(0)));
  const Rows ours(x, weights), theirs(x, weights);
  const std::vector<std::pair<std::string, jobs::Parameters>> jobs = {
      {"kmeans.norms", {shift}},
      {"kmeans.include", {points.narrow(0, 0, 1), shift}},
      {"kmeans.include", {points, shift}},
      {"kmeans.assign", {centres, shift}},
      {"kmeans.distances", {centres}},
      {"kmeans.assign", {centres * 0.75 + 0.25 * centres.mean(0), shift}}};
  for (const auto& [task, parameters] : jobs) {
    SCOPED_TRACE(task);
    expect_same(jobs::sum_of(ours.run(task, at::kCUDA, parameters)),
                jobs::sum_of(theirs.run(task, at::kCPU, parameters)));
    for (size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(at::equal(ours.data.tensor(i), theirs.data.tensor(i))) << "rows, tensor " << i;
  }
}

TEST_F(KMeansKernels, HaveTheBitsOfTheCpu) {
  struct Case {
    int64_t rows, dim, centres;
  };
  for (const auto& [rows, dim, centres] :
       {Case{1, 1, 1}, Case{3, 5, 7}, Case{1023, 8, 5}, Case{1025, 3, 64}, Case{2500, 20, 65},
        Case{700, 33, 130}, Case{5000, 4, 3}}) {
    SCOPED_TRACE(fmt::format("{} x {}, K = {}", rows, dim, centres));
    const at::Tensor x = raw_features(rows, dim, 12, 3);
    compare(x,
            normal({centres, dim}, 5, at::kDouble) * x.to(at::kDouble).std(0, false).clamp_min(1) +
                x.mean(0).to(at::kDouble));
  }
}

TEST_F(KMeansKernels, WeighRowsAsTheCpuDoes) {
  const at::Tensor x = raw_features(2500, 5, 12, 3);
  const at::Tensor weights = normal({2500}, 4, at::kDouble).clamp_min(0);
  compare(x, some_rows(x, 9), weights);
  const jobs::ResidentData batch({at::arange(0, 2500, 2, at::kLong)}, 0, {x, weights});
  const jobs::Parameters parameters = {some_rows(x, 4), x.mean(0)};
  const auto run = [&](c10::DeviceType kind) {
    return jobs::sum_of(jobs::call_task(jobs::find_task("kmeans.batch", kind), parameters,
                                        batch.shards(kKMeansBatchGrain), 0));
  };
  expect_same(run(at::kCUDA), run(at::kCPU));
}

TEST_F(KMeansKernels, SettleTiesAsTheCpuDoes) {
  // Many centres are equal, and many rows lie in the middle of two centres.
  const at::Tensor x = at::randint(0, 3, {1500, 6}, at::kFloat);
  compare(x, at::randint(0, 3, {90, 6}, at::kDouble));
  compare(at::full({1100, 2}, 7.5, at::kFloat), at::full({3, 2}, 7.5, at::kDouble));
}

TEST_F(KMeansKernels, SettleScoresThatOverflow) {
  const at::Tensor x = normal({300, 3}, 1) * 1e30;
  compare(x, x.narrow(0, 0, 9).to(at::kDouble));
}

TEST_F(KMeansKernels, AddAnyShardsAlongTheTree) {
  // Shards 3 to 80 of a job: blocks of 1, 4, 8, 16, 32, 16 and 1 shards.
  const at::Tensor x = raw_features(78 * kKMeansGrain - 5, 2, 4, 3), shift = x.mean(0);
  const Rows ours(x), theirs(x);
  const jobs::Shards shards = ours.data.shards(kKMeansGrain);
  const auto blocks =
      jobs::call_task(jobs::find_task("kmeans.norms", at::kCUDA), {shift}, shards, 3);
  const auto expected = jobs::call_task(jobs::find_task("kmeans.norms", at::kCPU), {shift},
                                        theirs.data.shards(kKMeansGrain), 3);
  ASSERT_EQ(blocks.size(), expected.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].first, expected[i].first);
    EXPECT_EQ(blocks[i].count, expected[i].count);
    expect_same(blocks[i].partial, expected[i].partial);
  }
}

TEST_F(KMeansKernels, BatchesHaveTheBitsOfTheCpu) {
  const at::Tensor x = raw_features(5000, 5, 4, 3), shift = x.mean(0), centres = some_rows(x, 4);
  const jobs::ResidentData batch({at::arange(0, 5000, 2, at::kLong)}, 0, {x});
  const jobs::Shards all = batch.shards(kKMeansBatchGrain);
  const auto run = [&](c10::DeviceType kind) {
    return jobs::sum_of(
        jobs::call_task(jobs::find_task("kmeans.batch", kind), {centres, shift}, all, 0));
  };
  expect_same(run(at::kCUDA), run(at::kCPU));
}

}  // namespace
}  // namespace dovetail::fit::testing::kmeans_kernels_test
