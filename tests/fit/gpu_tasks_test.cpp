// GPU tasks of tables are composed of ATen operations, which run on any device. Here they run on
// the CPU and are compared with the CPU's own tasks.
#include <ATen/ATen.h>

#include "dovetail/fit/mixture/mixture.h"
#include "dovetail/fit/regression/regression.h"
#include "dovetail/jobs/task.h"
#include "tests/fit/testing.h"

namespace dovetail::fit::testing::gpu_tasks_test {
namespace {

/// Runs both variants of a task on data that `make` creates. Compares the partials, and the tensors
/// that the task writes.
void compare(const std::string& task, const jobs::Parameters& parameters,
             const std::vector<at::Tensor>& tensors) {
  SCOPED_TRACE(task);
  const auto& ours = jobs::find_task(task, at::kCUDA);
  const auto& theirs = jobs::find_task(task, at::kCPU);
  EXPECT_EQ(ours.writes, theirs.writes);
  const auto run = [&](const jobs::TaskVariant& variant, std::vector<at::Tensor>& rows) {
    for (at::Tensor& tensor : rows) tensor = tensor.clone();
    const jobs::ResidentData data(rows);
    return jobs::sum_of(jobs::call_task(variant, parameters, data.shards(700), 0));
  };
  auto our_rows = tensors, their_rows = tensors;
  const jobs::Partial composed = run(ours, our_rows), expected = run(theirs, their_rows);
  EXPECT_NEAR(composed.weight, expected.weight, 1e-9 * expected.weight);
  ASSERT_EQ(composed.tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < expected.tensors.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(composed.tensors[i].sizes(), expected.tensors[i].sizes());
    ASSERT_EQ(composed.tensors[i].scalar_type(), expected.tensors[i].scalar_type());
    expect_close(composed.tensors[i], expected.tensors[i], 1e-10);
  }
  for (const size_t i : theirs.writes) expect_close(our_rows[i], their_rows[i], 1e-10);
}

constexpr int64_t kRows = 2000;

TEST(GpuTasks, OfTablesAreThoseOfTheCpu) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = normal({kRows, 9}, 3, at::kDouble).to(type),
                     point = x.mean(0).to(at::kDouble);
    compare("table.moments", {point}, {x});
    compare("principal.times", {point, normal({9, 4}, 4, at::kDouble)}, {x});
  }
}

TEST(GpuTasks, CovarianceIsThatOfTheCpu) {
  const at::Tensor x = normal({kRows, 9}, 3), point = x.mean(0).to(at::kDouble);
  const auto run = [&](c10::DeviceType kind) {
    const jobs::ResidentData data({x});
    return jobs::sum_of(jobs::call_task(jobs::find_task("principal.covariance", kind), {point},
                                        data.shards(700), 0))
        .tensors.at(0)
        .triu();  // the CPU leaves the lower half undefined
  };
  expect_close(run(at::kCUDA), run(at::kCPU), 1e-10);
}

TEST(GpuTasks, OfRegressionAreThoseOfTheCpu) {
  const at::Tensor x = normal({kRows, 7}, 3), mean = x.mean(0).to(at::kDouble);
  const at::Tensor y = normal({kRows}, 4, at::kDouble),
                   weights = normal({kRows}, 5, at::kDouble).abs().clamp_max(1);
  const at::Tensor near = at::scalar_tensor(0.3, at::kDouble);
  compare("regression.moments", {mean}, {x, y, weights});
  for (const bool weighted : {false, true}) {
    const auto with = [&](const at::Tensor& target) {
      return weighted ? std::vector{x, target, weights} : std::vector{x, target};
    };
    compare("linear.products", {mean, near}, with(y));
    compare("linear.residuals", {mean, normal({7}, 6, at::kDouble), near}, with(y));
    for (const int64_t outputs : {1, 4}) {
      const at::Tensor classes =
          at::arange(kRows, at::kLong) * 7919 % std::max<int64_t>(2, outputs);
      compare("logistic.gradient",
              {normal({outputs, 7}, 7, at::kDouble), normal({outputs}, 8, at::kDouble), mean},
              with(classes));
      // Equal scores: the first class is taken.
      compare("logistic.gradient",
              {at::zeros({outputs, 7}, at::kDouble), at::zeros({outputs}, at::kDouble), mean},
              with(classes));
    }
  }
}

TEST(GpuTasks, OfMixturesAreThoseOfTheCpu) {
  const at::Tensor x = normal({kRows, 3}, 3), means = normal({4, 3}, 4, at::kDouble);
  const at::Tensor labels = (at::arange(kRows, at::kLong) * 7919 % 4).to(at::kInt),
                   constants = normal({4}, 5, at::kDouble);
  for (const Covariance structure :
       {Covariance::kFull, Covariance::kDiagonal, Covariance::kTied, Covariance::kSpherical}) {
    const at::Tensor which = covariance_parameter(structure);
    const at::Tensor roots = structure == Covariance::kFull   ? normal({4, 3, 3}, 6, at::kDouble)
                             : structure == Covariance::kTied ? normal({3, 3}, 6, at::kDouble)
                                                              : normal({4, 3}, 6, at::kDouble);
    compare("mixture.start", {means, which}, {x, labels});
    compare("mixture.expect", {means, roots, constants, which}, {x, labels});
    compare("mixture.scores", {means, roots, constants, which},
            {x, at::zeros({kRows, 4}, at::kDouble)});
  }
}

}  // namespace
}  // namespace dovetail::fit::testing::gpu_tasks_test
