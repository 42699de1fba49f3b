// A run is stopped after any of its iterations and resumes from the reported state. Its result is
// bitwise equal to an uninterrupted run.
#include <ATen/ATen.h>

#include "dovetail/fit/components/principal_components.h"
#include "dovetail/fit/kmeans/batch.h"
#include "dovetail/fit/mixture/mixture.h"
#include "dovetail/fit/regression/regression.h"
#include "tests/fit/testing.h"

namespace dovetail::fit::testing::stopped_test {
namespace {

using State = std::vector<at::Tensor>;

struct Course {
  std::vector<at::Tensor> result;
  std::vector<State> states;
  int64_t iterations = 0;
  bool converged = true;
};

/// Runs `fit`, which resumes from a state or starts if it is empty. It must take more than `least`
/// iterations. Each iteration has a state, except one that converged.
template <class Fit>
void expect_to_go_on(int64_t least, const Fit& fit) {
  const Course whole = fit(State());
  const int64_t iterations = whole.iterations;
  ASSERT_GT(iterations, least);
  ASSERT_EQ(std::ssize(whole.states), iterations);
  for (int64_t done = 1; done <= iterations; ++done) {
    const State& state = whole.states[static_cast<size_t>(done - 1)];
    ASSERT_EQ(state.empty(), whole.converged && done == iterations) << "after " << done;
    if (state.empty()) continue;
    const Course rest = fit(state);
    EXPECT_EQ(rest.iterations, iterations);
    EXPECT_EQ(std::ssize(rest.states), iterations - done);
    for (size_t i = 0; i < whole.result.size(); ++i)
      EXPECT_TRUE(at::equal(rest.result[i], whole.result[i]))
          << "tensor " << i << " after " << done;
  }
}

at::Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }

Course course_of(const KMeansResult& result, std::vector<State> states) {
  return {.result = {result.centres, result.labels, result.counts, number(result.inertia)},
          .states = std::move(states),
          .iterations = result.iterations,
          .converged = result.converged};
}

TEST(Stopped, LloydGoesOnUntilNoLabelChanges) {
  const at::Tensor x = raw_features(900, 3, 6, 2);
  at::Tensor start = some_rows(x, 6);
  start[2].fill_(1e9);  // without rows: it moves
  std::vector<int64_t> changed;
  expect_to_go_on(3, [&](const State& state) {
    KMeansData data(x);
    std::vector<State> states;
    const KMeansResult result =
        lloyd(data, start, {.tolerance = 0, .state = state}, [&](const LloydIteration& line) {
          states.push_back(line.state);
          if (state.empty()) changed.push_back(*line.changed);
          if (!state.empty()) {
            EXPECT_EQ(*line.changed, changed.at(static_cast<size_t>(line.iteration - 1)));
          }
        });
    EXPECT_TRUE(result.converged);
    return course_of(result, std::move(states));
  });
}

TEST(Stopped, LloydAndMiniBatchesGoOnToTheLastIterationTheyMay) {
  const at::Tensor x = raw_features(2000, 3, 6, 2), start = some_rows(x, 6);
  for (const bool batches : {false, true})
    expect_to_go_on(3, [&](const State& state) {
      KMeansData data(x);
      std::vector<State> states;
      const auto add = [&](const LloydIteration& line) { states.push_back(line.state); };
      const KMeansResult result =
          batches ? mini_batch(data, start, {.batch = 300, .iterations = 4, .state = state}, add)
                  : lloyd(data, start, {.iterations = 4, .tolerance = 0, .state = state}, add);
      EXPECT_FALSE(result.converged);
      return course_of(result, std::move(states));
    });
}

TEST(Stopped, MiniBatchesGoOnUntilPatienceIsOver) {
  const at::Tensor x = raw_features(2000, 3, 6, 2);
  const auto fit = [&](const State& state) {
    KMeansData data(x);
    std::vector<State> states;
    const KMeansResult result = mini_batch(
        data, some_rows(x, 6), {.batch = 300, .iterations = 100, .patience = 4, .state = state},
        [&](const LloydIteration& line) { states.push_back(line.state); });
    EXPECT_TRUE(result.converged);
    return course_of(result, std::move(states));
  };
  expect_to_go_on(5, fit);
}

TEST(Stopped, AMixtureGoesOnWithoutItsStart) {
  const at::Tensor x = normal({900, 3}, 1) + 2 * (at::arange(900) % 2).unsqueeze(1);
  const at::Tensor labels = (at::arange(900, at::kInt) % 3).to(at::kInt);
  const auto fit = [&](const State& state) {
    MixtureData data(x.contiguous());
    const Mixture start = state.empty()
                              ? data.of_labels(labels, some_rows(x, 3), Covariance::kFull, 1e-3)
                              : Mixture();
    Course run;
    const MixtureResult result =
        fit_mixture(data, start, {.tolerance = 1e-4, .state = state},
                    [&](const MixtureIteration& line) { run.states.push_back(line.state); });
    EXPECT_TRUE(result.converged);
    run.iterations = result.iterations;
    run.result = {result.mixture.weights, result.mixture.means, result.mixture.covariances,
                  result.labels, number(result.log_likelihood)};
    return run;
  };
  expect_to_go_on(2, fit);
}

TEST(Stopped, PrincipalComponentsGoOn) {
  const at::Tensor x = normal({600, 20}, 1);
  const TableData data("pca", x, nullptr);
  const auto fit = [&](const State& state) {
    Course run;
    const PrincipalResult result = fit_principal(
        data,
        {.components = 3, .solver = PrincipalSolver::kPower, .tolerance = 1e-3, .state = state},
        [&](const PrincipalIteration& line) { run.states.push_back(line.state); });
    EXPECT_TRUE(result.converged);
    run.iterations = result.iterations;
    run.result = {result.directions, result.variances};
    return run;
  };
  expect_to_go_on(2, fit);
}

TEST(Stopped, LogisticRegressionGoesOnWithItsPairs) {
  const at::Tensor x = normal({500, 4}, 1);
  const at::Tensor y = (x.select(1, 0) + normal({500}, 2)).floor().to(at::kLong).clamp(-1, 1) + 1;
  const auto fit = [&](const State& state) {
    RegressionData data(x, y);
    Course run;
    const LogisticResult result =
        fit_logistic(data, 3, {.state = state},
                     [&](const LogisticIteration& line) { run.states.push_back(line.state); });
    EXPECT_TRUE(result.converged);
    run.iterations = result.iterations;
    run.result = {result.coefficients, result.intercepts, number(result.loss)};
    return run;
  };
  expect_to_go_on(4, fit);
}

}  // namespace
}  // namespace dovetail::fit::testing::stopped_test
