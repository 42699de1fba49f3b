// Mixtures, regression and mini-batches keep the promises of their algorithms. Results are bitwise
// equal on any number of threads, on executors that fail and on two nodes. Their values are
// compared with scikit-learn in tests/cli/test_fit.py and tests/python/test_kmeans.py.
#include <ATen/Parallel.h>

#include <atomic>
#include <cmath>
#include <set>

#include "dovetail/base/log.h"
#include "dovetail/fit/components/principal_components.h"
#include "dovetail/fit/kmeans/batch.h"
#include "dovetail/fit/mixture/mixture.h"
#include "dovetail/fit/regression/regression.h"
#include "dovetail/jobs/runtime.h"
#include "tests/fit/testing.h"
#include "tests/jobs/nodes_testing.h"

namespace dovetail::fit::testing::fit_test {
namespace {

using Shared = std::shared_ptr<jobs::Workers>;

/// Five shards: sums in another order, or along another tree, differ in bits.
constexpr int64_t kRows = 9 * kTableGrain / 2;

/// Three executors. A third of the pieces of work is lost after it was done, or delivered twice.
Shared failing() {
  const auto count = std::make_shared<std::atomic<int>>(0);
  return std::make_shared<jobs::Runtime>(
      std::vector<jobs::ExecutorSpec>(3),
      jobs::RuntimeOptions{.scheduling = {.max_misses = 1 << 20, .max_attempts = 1 << 20},
                           .binding = jobs::RuntimeOptions::Binding::kNone,
                           .around = [count](size_t, const jobs::Block&,
                                             const std::function<jobs::ShardResult()>& work) {
                             const int turn = (*count)++ % 6;
                             std::vector<jobs::ShardResult> results;
                             results.push_back(work());
                             if (turn == 0) throw std::runtime_error("injected");
                             if (turn == 3) results.push_back(work());
                             return results;
                           }});
}

/// Expects that the tensors of `fit` are bitwise equal in all ways to compute them.
void expect_same_bits(const std::function<std::vector<at::Tensor>(Shared)>& fit) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto expected = fit(nullptr);
  at::set_num_threads(3);
  const auto threads = fit(nullptr);
  at::set_num_threads(before);
  set_log_level(LogLevel::kQuiet);
  const auto executors = fit(failing());
  set_log_level(LogLevel::kInfo);
  jobs::testing::run_nodes(2, [&](int, const std::shared_ptr<comm::Group>& group) {
    const auto nodes = fit(std::make_shared<jobs::Nodes>(group, nullptr));
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(nodes[i], expected[i])) << "tensor " << i << " on two nodes";
  });
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(threads[i], expected[i])) << "tensor " << i << " on three threads";
    EXPECT_TRUE(at::equal(executors[i], expected[i])) << "tensor " << i << " on executors";
  }
}

at::Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }

Mixture start_of(MixtureData& data, const at::Tensor& x, int64_t num, Covariance covariance) {
  const at::Tensor labels = (at::arange(x.size(0), at::kInt) % num).to(at::kInt);
  const at::Tensor points = some_rows(x, num);
  Mixture start = data.of_labels(labels, points, covariance, 1e-3);
  start.means = points;
  return start;
}

TEST(Mixture, IsTheSameBitsWhoeverComputes) {
  const at::Tensor x = normal({kRows, 5}, 1);
  for (const Covariance covariance :
       {Covariance::kFull, Covariance::kDiagonal, Covariance::kTied, Covariance::kSpherical})
    expect_same_bits([&](const Shared& workers) -> std::vector<at::Tensor> {
      MixtureData data(x, workers);
      const MixtureResult result =
          fit_mixture(data, start_of(data, x, 3, covariance), {.iterations = 4});
      return {result.mixture.means, result.mixture.covariances, result.labels,
              number(result.log_likelihood)};
    });
}

TEST(Mixture, OfLabelsHasTheirMomentsHoweverFarFromZeroTheyAre) {
  const at::Tensor x = normal({900, 3}, 1) + 1e4 * (at::arange(900) % 2).unsqueeze(1);
  const at::Tensor labels = (at::arange(900, at::kLong) % 2).to(at::kInt);
  MixtureData data(x.to(at::kFloat).contiguous());
  const Mixture mixture =
      data.of_labels(labels, at::tensor({0.0, 1e4}, at::kDouble).unsqueeze(1).expand({2, 3}),
                     Covariance::kFull, 0);
  for (int64_t k = 0; k < 2; ++k) {
    const at::Tensor rows = x.to(at::kFloat).to(at::kDouble).slice(0, k, 900, 2);
    const at::Tensor centred = rows - rows.mean(0);
    expect_close(mixture.means[k], rows.mean(0), 1e-11);
    expect_close(mixture.covariances[k], centred.t().matmul(centred) / 450, 1e-11);
  }
}

TEST(Mixture, OfFloat64RowsIsTheSameAsOfTheirFloat32) {
  const at::Tensor x = normal({700, 3}, 1), wide = x.to(at::kDouble);
  for (const Covariance covariance : {Covariance::kFull, Covariance::kSpherical}) {
    MixtureData narrow(x), data(wide);
    const MixtureResult one = fit_mixture(narrow, start_of(narrow, x, 2, covariance)),
                        two = fit_mixture(data, start_of(data, wide, 2, covariance));
    EXPECT_TRUE(at::equal(one.labels, two.labels));
    expect_close(one.mixture.covariances, two.mixture.covariances, 1e-12);
    const at::Tensor scores = log_densities(wide, two.mixture, precision_roots(two.mixture));
    EXPECT_TRUE(at::equal(scores.argmax(1).to(at::kInt), two.labels));
    EXPECT_NEAR(at::logsumexp(scores, 1).mean().item<double>(), two.log_likelihood, 1e-12);
  }
}

TEST(Mixture, KeepsAComponentThatNoRowIsNear) {
  const at::Tensor x = normal({500, 2}, 1);
  MixtureData data(x);
  Mixture start = start_of(data, x, 2, Covariance::kFull);
  start.means[1].fill_(1e6);
  const MixtureResult result = fit_mixture(data, start, {.iterations = 5});
  EXPECT_EQ(result.mixture.means[1][0].item<double>(), 1e6);
  EXPECT_NEAR(result.mixture.weights[0].item<double>(), 1, 1e-12);
  EXPECT_TRUE(std::isfinite(result.log_likelihood));
}

TEST(Mixture, RefusesWhatIsNone) {
  const at::Tensor x = normal({50, 2}, 1);
  MixtureData data(x);
  const Mixture good = start_of(data, x, 3, Covariance::kFull);
  Mixture bad = good;
  bad.covariances = good.covariances.narrow(1, 0, 1);
  EXPECT_THROW(fit_mixture(data, bad), UserError);
  bad = good;
  bad.covariances[1].fill_(1);
  EXPECT_THROW(fit_mixture(data, bad), UserError) << "of rank one";
  EXPECT_THROW(fit_mixture(data, good, {.iterations = 0}), UserError);
  EXPECT_THROW(parse_covariance("round"), UserError);
  bad = good;
  bad.structure = Covariance::kTied;
  EXPECT_THROW(fit_mixture(data, bad), UserError);
  EXPECT_THROW(log_densities(x, good, good.covariances[0]), UserError);
  EXPECT_THROW(data.of_labels(at::full({50}, 3, at::kInt), good.means, Covariance::kFull, 0),
               UserError);
  x[3][1] = NAN;
  EXPECT_THROW(MixtureData{x}, UserError);
}

TEST(Regression, IsTheSameBitsWhoeverComputes) {
  const at::Tensor x = normal({kRows, 6}, 1);
  const at::Tensor y = x.to(at::kDouble).sum(1) + normal({x.size(0)}, 2, at::kDouble);
  expect_same_bits([&](const Shared& workers) -> std::vector<at::Tensor> {
    RegressionData data(x, y, workers);
    const LinearResult result = fit_linear(data);
    return {result.coefficients, number(result.intercept), number(result.rmse)};
  });
  const at::Tensor weights = normal({x.size(0)}, 3, at::kDouble).abs();
  expect_same_bits([&](const Shared& workers) -> std::vector<at::Tensor> {
    RegressionData data(x, y, workers, weights);
    const LinearResult result = fit_linear(data);
    return {result.coefficients, number(result.intercept), number(result.rmse)};
  });
  for (const int64_t classes : {2, 3})
    for (const at::Tensor& given : {at::Tensor(), weights})
      expect_same_bits([&](const Shared& workers) -> std::vector<at::Tensor> {
        RegressionData data(x, y.floor().to(at::kLong).remainder(classes), workers, given);
        const LogisticResult result = fit_logistic(data, classes, {.iterations = 5});
        return {result.coefficients, result.intercepts, number(result.loss),
                number(result.accuracy)};
      });
}

TEST(Regression, AWeightCountsARowThatOften) {
  const at::Tensor x = normal({300, 3}, 1, at::kDouble),
                   y = x.sum(1) + normal({300}, 2, at::kDouble);
  const at::Tensor times = at::arange(300, at::kLong) % 3;
  const at::Tensor rows = at::repeat_interleave(times), classes = (y > 0.3).to(at::kLong);
  const auto repeated = [&](const at::Tensor& all) { return all.index_select(0, rows); };
  RegressionData weighted(x, y, nullptr, times.to(at::kDouble)), plain(repeated(x), repeated(y));
  const LinearResult one = fit_linear(weighted), two = fit_linear(plain);
  expect_close(one.coefficients, two.coefficients, 1e-12);
  EXPECT_NEAR(one.r2, two.r2, 1e-12);
  EXPECT_NEAR(one.rmse, two.rmse, 1e-12);
  RegressionData some(x, classes, nullptr, times.to(at::kDouble)),
      all(repeated(x), repeated(classes));
  const LogisticOptions options{.tolerance = 1e-11};
  const LogisticResult three = fit_logistic(some, 2, options), four = fit_logistic(all, 2, options);
  expect_close(three.coefficients, four.coefficients, 1e-8);
  EXPECT_NEAR(three.loss, four.loss, 1e-12);
  EXPECT_NEAR(three.accuracy, four.accuracy, 1e-12);
}

TEST(Regression, LogisticEndsWhereTheGradientOfItsObjectiveIsZero) {
  // The objective as autograd sees it, in float64.
  const at::Tensor x = normal({400, 4}, 1) * at::tensor({1.0f, 100.0f, 0.01f, 5.0f}) + 3;
  const at::Tensor y =
      (normal({400}, 2) + x.select(1, 0)).mul(1.5).floor().to(at::kLong).clamp(2, 5) - 2;
  RegressionData data(x.contiguous(), y);
  const LogisticResult result = fit_logistic(data, 4, {.l2 = 0.3, .tolerance = 1e-10});
  ASSERT_TRUE(result.converged);
  const at::Tensor scores = x.to(at::kDouble).matmul(result.coefficients.t()) + result.intercepts;
  const at::Tensor wrong = at::softmax(scores, 1) - at::one_hot(y, 4).to(at::kDouble);
  const at::Tensor by_w =
      wrong.t().matmul(x.to(at::kDouble) - x.to(at::kDouble).mean(0)) + 0.3 * result.coefficients;
  const at::Tensor scale = x.to(at::kDouble).var(0, /*unbiased=*/false).sqrt();
  EXPECT_LT((by_w / scale).abs().max().item<double>(), 1e-6);
  EXPECT_LT(wrong.sum(0).abs().max().item<double>(), 1e-6);
  EXPECT_NEAR(result.loss, at::nll_loss(at::log_softmax(scores, 1), y).item<double>(), 1e-12);
  EXPECT_NEAR(result.accuracy, (scores.argmax(1) == y).to(at::kDouble).mean().item<double>(),
              1e-12);
}

TEST(Regression, RefusesTargetsThatDoNotFit) {
  const at::Tensor x = normal({10, 2}, 1);
  EXPECT_THROW(RegressionData(x, at::zeros({9}, at::kDouble)), UserError);
  EXPECT_THROW(RegressionData(x, at::zeros({10})), UserError);
  EXPECT_THROW(RegressionData(x, at::full({10}, NAN, at::kDouble)), UserError);
  RegressionData numbers(x, at::zeros({10}, at::kDouble)), classes(x, at::arange(10, at::kLong));
  for (const at::Tensor& weights :
       {at::ones({9}, at::kDouble), at::ones({10}), at::zeros({10}, at::kDouble),
        at::full({10}, -1.0, at::kDouble), at::full({10}, NAN, at::kDouble)})
    EXPECT_THROW(RegressionData(x, at::zeros({10}, at::kDouble), nullptr, weights), UserError);
  EXPECT_THROW(fit_logistic(numbers, 2), UserError);
  EXPECT_THROW(fit_linear(classes), UserError);
  EXPECT_THROW(fit_logistic(classes, 9), UserError);
  EXPECT_THROW(fit_linear(numbers, {.l2 = -1}), UserError);
  EXPECT_TRUE(std::isnan(fit_linear(numbers).r2));
}

TEST(Principal, IsTheSameBitsWhoeverComputes) {
  const at::Tensor x = normal({kRows, 12}, 1);
  for (const PrincipalSolver solver : {PrincipalSolver::kCovariance, PrincipalSolver::kPower})
    expect_same_bits([&](const Shared& workers) -> std::vector<at::Tensor> {
      const PrincipalResult result = fit_principal(
          TableData("pca", x, workers), {.components = 3, .solver = solver, .iterations = 4});
      return {result.directions, result.variances, result.shares};
    });
}

TEST(Principal, SolversAgree) {
  const at::Tensor x = normal({700, 30}, 1) * at::linspace(1, 4, 30);
  const TableData data("pca", x.contiguous(), nullptr);
  const auto by = [&](PrincipalSolver solver) {
    return fit_principal(data, {.components = 5, .solver = solver, .tolerance = 1e-12});
  };
  const PrincipalResult one = by(PrincipalSolver::kCovariance), two = by(PrincipalSolver::kPower);
  EXPECT_EQ(one.iterations, 1);
  EXPECT_GT(two.iterations, 3);
  expect_close(one.directions, two.directions, 1e-8);
  expect_close(one.shares, two.shares, 1e-12);
  EXPECT_EQ(resolved(PrincipalSolver::kAuto, kMostCovariance), PrincipalSolver::kCovariance);
  EXPECT_EQ(resolved(PrincipalSolver::kAuto, kMostCovariance + 1), PrincipalSolver::kPower);
}

TEST(Principal, OfRowsOnALineThereIsOneDirection) {
  const at::Tensor x = (normal({300, 1}, 1) * at::tensor({3.0f, 0.0f, -4.0f})).contiguous();
  for (const PrincipalSolver solver : {PrincipalSolver::kCovariance, PrincipalSolver::kPower}) {
    const PrincipalResult result =
        fit_principal(TableData("pca", x, nullptr), {.components = 2, .solver = solver});
    EXPECT_TRUE(result.converged);
    expect_close(result.directions.select(1, 0), at::tensor({-0.6, 0.0, 0.8}, at::kDouble), 1e-6);
    EXPECT_NEAR(result.shares[0].item<double>(), 1, 1e-12);
    EXPECT_NEAR(result.shares[1].item<double>(), 0, 1e-12);
    const PrincipalResult none =
        fit_principal(TableData("pca", at::ones({5, 2}), nullptr), {.solver = solver});
    EXPECT_EQ(none.shares.sum().item<double>(), 0);
  }
}

TEST(MiniBatch, IsTheSameBitsWhoeverComputes) {
  const at::Tensor x = normal({20000, 5}, 1);
  expect_same_bits([&](const Shared& workers) -> std::vector<at::Tensor> {
    KMeansData data(x, workers);
    const KMeansResult result =
        mini_batch(data, some_rows(x, 7), {.batch = 5 * kKMeansBatchGrain / 2, .iterations = 9});
    return {result.centres, result.labels, result.counts, number(result.inertia)};
  });
}

TEST(MiniBatch, CentresAreTheMeansOfAllThatCameToThem) {
  const at::Tensor x = raw_features(1000, 4, 5, 1), start = some_rows(x, 5);
  constexpr int64_t kBatch = 300;
  KMeansData data(x);
  at::Tensor centres = start.clone(), seen = at::zeros({5}, at::kDouble);
  std::vector<double> inertias;
  const KMeansResult result =
      mini_batch(data, start, {.batch = kBatch, .iterations = 6, .patience = 0, .seed = 4},
                 [&](const LloydIteration& line) { inertias.push_back(line.inertia); });
  for (int64_t i = 0; i < 6; ++i) {
    const at::Tensor rows = batch_rows(1000, kBatch, i, 4);
    const Reference step = assign_reference(x.index_select(0, rows), centres);
    EXPECT_NEAR(inertias[static_cast<size_t>(i)], step.inertia * 1000 / kBatch, 1e-9 * inertias[0]);
    // Sculley's update, row by row: a centre's rate is one over the number of its rows so far.
    for (int64_t r = 0; r < kBatch; ++r) {
      const int64_t label = step.labels[r].item<int64_t>();
      seen[label] += 1;
      centres[label] += (x[rows[r].item<int64_t>()].to(at::kDouble) - centres[label]) / seen[label];
    }
  }
  expect_close(result.centres, centres, 1e-9);
  EXPECT_TRUE(at::equal(result.labels, assign_reference(x, result.centres).labels));
  EXPECT_FALSE(result.converged);
}

TEST(MiniBatch, UsesEveryRowOnceBeforeAnyTwice) {
  std::multiset<int64_t> rows;
  for (int64_t i = 0; i < 10; ++i) {
    const at::Tensor batch = batch_rows(25, 10, i, 7);
    for (int64_t r = 0; r < 10; ++r) rows.insert(batch[r].item<int64_t>());
  }
  for (int64_t row = 0; row < 25; ++row) EXPECT_EQ(rows.count(row), 4U) << row;
  EXPECT_FALSE(at::equal(batch_rows(25, 25, 0, 7), batch_rows(25, 25, 1, 7)));
}

}  // namespace
}  // namespace dovetail::fit::testing::fit_test
