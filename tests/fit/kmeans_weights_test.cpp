// Weights of rows: a row of weight w counts like w equal rows.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/fit/kmeans/batch.h"
#include "dovetail/fit/kmeans/init.h"
#include "dovetail/jobs/runtime.h"
#include "tests/fit/testing.h"

namespace dovetail::fit::testing::kmeans_weights_test {
namespace {

constexpr KMeansInit kAll[] = {KMeansInit::kPlusPlus, KMeansInit::kParallel, KMeansInit::kRandom,
                               KMeansInit::kFirst};

/// Returns weights 0, 1, 2 and 3 in turn.
at::Tensor whole_weights(int64_t rows) { return (at::arange(rows, at::kDouble) * 7 + 1) % 4; }

/// Returns the rows of x as often as their weights say.
at::Tensor repeated(const at::Tensor& x, const at::Tensor& weights) {
  return x.repeat_interleave(weights.to(at::kLong), 0).contiguous();
}

void expect_near(double value, double expected, double part) {
  EXPECT_NEAR(value, expected, part * std::abs(expected));
}

TEST(KMeansWeights, AreRepeatedRowsInEachPass) {
  at_every_simd_level([] {
    // The kernel of few centres, the kernel of many, and fewer columns than a vector has.
    for (const auto& [dim, k] :
         {std::pair<int64_t, int64_t>{33, 4}, {16, 6}, {130, 3}, {20, 9}, {3, 2}}) {
      SCOPED_TRACE(fmt::format("{} columns, {} centres", dim, k));
      const at::Tensor x = normal({2 * kKMeansGrain + 77, dim}, 3),
                       weights = whole_weights(x.size(0));
      const at::Tensor centres = normal({k, dim}, 4, at::kDouble);
      KMeansData ours(x, nullptr, weights), oracle(repeated(x, weights));
      const jobs::Partial a = ours.assign(centres), b = oracle.assign(centres);
      expect_close(a.tensors[0], b.tensors[0], 1e-12);
      EXPECT_TRUE(at::equal(a.tensors[1], b.tensors[1].to(at::kDouble)));
      EXPECT_EQ(a.weight, b.weight);
      EXPECT_EQ(ours.total_weight(), b.weight);
      EXPECT_TRUE(at::equal(repeated(ours.labels(), weights), oracle.labels()));
      expect_near(ours.distances(centres).inertia, oracle.distances(centres).inertia, 1e-12);
      expect_near(ours.inertia_of(a, centres), oracle.inertia_of(b, centres), 1e-11);
      expect_near(ours.mean_variance(a), oracle.mean_variance(b), 1e-12);
      ours.forget_closest();
      oracle.forget_closest();
      expect_near(ours.include(centres.slice(0, 0, 2)), oracle.include(centres.slice(0, 0, 2)),
                  1e-12);
      expect_close(ours.potentials(centres), oracle.potentials(centres), 1e-12);
      // More than 16 points take another path.
      const at::Tensor points = some_rows(x, 20) + 0.25;
      expect_near(ours.include(points), oracle.include(points), 1e-12);
      const at::Tensor rows = at::arange(0, x.size(0), 2, at::kLong);
      KMeansData half(repeated(x.index_select(0, rows), weights.index_select(0, rows)));
      const jobs::Partial batch = ours.assign_batch(rows, centres), all = half.assign(centres);
      expect_close(batch.tensors[0], all.tensors[0], 1e-12);
      EXPECT_TRUE(at::equal(batch.tensors[1], all.tensors[1].to(at::kDouble)));
      EXPECT_EQ(batch.weight, all.weight);
      expect_near(batch.tensors[2].item<double>(), half.distances(centres).inertia, 1e-12);
    }
  });
}

TEST(KMeansWeights, AreRepeatedRowsOfAWholeRun) {
  for (const int64_t k : {5, 12}) {
    const at::Tensor x = raw_features(3000, 9, 5, 1), weights = whole_weights(x.size(0));
    KMeansData ours(x, nullptr, weights), oracle(repeated(x, weights));
    const at::Tensor start = some_rows(x, k);
    const KMeansResult a = lloyd(ours, start), b = lloyd(oracle, start);
    EXPECT_EQ(a.iterations, b.iterations);
    expect_close(a.centres, b.centres, 1e-10);
    EXPECT_TRUE(at::equal(repeated(a.labels, weights), b.labels));
    expect_near(a.inertia, b.inertia, 1e-10);
    EXPECT_EQ(a.counts.sum().item<int64_t>(), x.size(0)) << "counts are rows";
    // A batch of all rows: their order does not matter.
    const int64_t taken = ours.rows_with_weight().numel();
    const KMeansResult c =
        mini_batch(ours, start, {.batch = taken, .iterations = 7, .patience = 0});
    const KMeansResult d =
        mini_batch(oracle, start, {.batch = oracle.rows(), .iterations = 7, .patience = 0});
    expect_close(c.centres, d.centres, 1e-10);
    expect_near(c.inertia, d.inertia, 1e-10);
  }
}

TEST(KMeansWeights, OfZeroLeaveRowsOut) {
  const at::Tensor x = normal({500, 7}, 1), weights = at::rand({500}, at::kDouble) + 0.1;
  // Far rows, to which empty centres would move.
  const at::Tensor far = normal({40, 7}, 2) * 100;
  const at::Tensor all = at::cat({far, x}),
                   with_zeros = at::cat({at::zeros({40}, at::kDouble), weights});
  const at::Tensor start = at::cat({some_rows(x, 4), at::full({3, 7}, 1e3, at::kDouble)});
  KMeansData ours(all, nullptr, with_zeros), oracle(x, nullptr, weights);
  const KMeansResult a = lloyd(ours, start, {.tolerance = 0}),
                     b = lloyd(oracle, start, {.tolerance = 0});
  EXPECT_GT(b.counts.min().item<int64_t>(), 0) << "no centre moved";
  expect_close(a.centres, b.centres, 1e-10);
  EXPECT_TRUE(at::equal(a.labels.slice(0, 40), b.labels));
  expect_near(a.inertia, b.inertia, 1e-10);
  for (const KMeansInit init : {KMeansInit::kPlusPlus, KMeansInit::kFirst})
    expect_same_bits(initial_centres(ours, 6, init, 3), initial_centres(oracle, 6, init, 3));
}

TEST(KMeansWeights, KeepACentreThatLosesAllItsRows) {
  // Both rows of the first centre are the farthest, so they leave for the two empty centres.
  // 0.3 - 0.1 - 0.2 is not 0 in float64.
  const at::Tensor x = at::tensor({-10.0F, 10.0F, 100.0F, 101.0F}).unsqueeze(1);
  const at::Tensor weights = at::tensor({0.1, 0.2, 1.0, 1.0}, at::kDouble);
  const at::Tensor start = at::tensor({0.0, 100.5, 1e6, 2e6}, at::kDouble).unsqueeze(1);
  KMeansData data(x, nullptr, weights);
  const KMeansResult result = lloyd(data, start, {.iterations = 1});
  EXPECT_EQ(result.centres[0].item<double>(), 0);
  EXPECT_EQ(result.centres.slice(0, 2).abs().min().item<double>(), 10);
}

TEST(KMeansWeights, OfOneChangeNoBit) {
  for (const int64_t k : {4, 11}) {
    const at::Tensor x = normal({2 * kKMeansGrain + 5, 19}, 1),
                     ones = at::ones({x.size(0)}, at::kDouble);
    for (const KMeansInit init : kAll) {
      KMeansData ours(x, nullptr, ones), oracle(x);
      const at::Tensor start = initial_centres(oracle, k, init, 5);
      expect_same_bits(initial_centres(ours, k, init, 5), start);
      const KMeansResult a = lloyd(ours, start, {.iterations = 4}),
                         b = lloyd(oracle, start, {.iterations = 4});
      expect_same_bits(a.centres, b.centres);
      EXPECT_EQ(a.inertia, b.inertia);
      const MiniBatchOptions batches{.batch = 500, .iterations = 6};
      expect_same_bits(mini_batch(ours, start, batches).centres,
                       mini_batch(oracle, start, batches).centres);
    }
  }
}

TEST(KMeansWeights, GiveTheSameBitsForAnyThreadsAndExecutors) {
  const at::Tensor x = normal({9 * kKMeansGrain + 5, 6}, 1);
  const at::Tensor weights = (normal({x.size(0)}, 2, at::kDouble)).abs().contiguous();
  const auto centres_on = [&](const std::shared_ptr<jobs::Workers>& workers) {
    KMeansData data(x, workers, weights);
    return at::cat(
        {lloyd(data, initial_centres(data, 13, KMeansInit::kPlusPlus, 1), {.iterations = 3})
             .centres,
         initial_centres(data, 13, KMeansInit::kParallel, 2),
         initial_centres(data, 13, KMeansInit::kRandom, 3)});
  };
  const at::Tensor one = [&] {
    const Threads now(1);
    return centres_on(nullptr);
  }();
  for (const int threads : {2, 3}) {
    const Threads now(threads);
    expect_same_bits(centres_on(nullptr), one);
  }
  expect_same_bits(centres_on(std::make_shared<jobs::Runtime>(
                       jobs::parse_executors("cpu:1,cpu:1"),
                       jobs::RuntimeOptions{.binding = jobs::RuntimeOptions::Binding::kNone})),
                   one);
}

TEST(KMeansWeights, AreTheProbabilitiesOfDraws) {
  constexpr int kSeeds = 4000;
  const at::Tensor x = at::arange(5, at::kFloat).unsqueeze(1);
  const at::Tensor weights = at::tensor({1.0, 0.0, 2.0, 3.0, 4.0}, at::kDouble);
  for (const KMeansInit init :
       {KMeansInit::kPlusPlus, KMeansInit::kParallel, KMeansInit::kRandom}) {
    SCOPED_TRACE(static_cast<int>(init));
    KMeansData data(x, nullptr, weights);
    at::Tensor drawn = at::zeros({5}, at::kDouble);
    for (int seed = 0; seed < kSeeds; ++seed) {
      const at::Tensor two = initial_centres(data, 2, init, static_cast<uint64_t>(seed));
      ASSERT_NE(two[0].item<double>(), two[1].item<double>());
      ASSERT_FALSE((two == 1).any().item<bool>()) << "a row of weight 0";
      if (init != KMeansInit::kParallel) drawn[two[0].item<int64_t>()] += 1;
    }
    if (init == KMeansInit::kParallel) continue;  // k-means++ chooses among its candidates
    const at::Tensor chance = weights / 10;
    const at::Tensor deviation = (chance * (1 - chance) * kSeeds).sqrt();
    EXPECT_LT((drawn - chance * kSeeds).abs().sub(5 * deviation).max().item<double>(), 1e-9)
        << drawn;
  }
}

TEST(KMeansWeights, ThatAreBadAreRefused) {
  const at::Tensor x = normal({4, 2}, 1);
  const auto refused = [&](const at::Tensor& weights, const std::string& words) {
    try {
      KMeansData data(x, nullptr, weights);
      FAIL() << words;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               inf = std::numeric_limits<double>::infinity();
  refused(at::tensor({1.0, 1.0, -0.5, 1.0}, at::kDouble), "the weight of row 2 is -0.5");
  refused(at::tensor({1.0, nan, 1.0, 1.0}, at::kDouble), "the weight of row 1 is nan");
  refused(at::tensor({inf, 1.0, 1.0, 1.0}, at::kDouble), "the weight of row 0 is inf");
  refused(at::zeros({4}, at::kDouble), "all weights are 0");
  refused(at::ones({3}, at::kDouble), "weights must be 4 contiguous float64 numbers");
  refused(at::ones({4}, at::kFloat), "weights must be 4 contiguous float64 numbers");
  refused(at::full({4}, 1e200, at::kDouble), "add up to 4e+200");
  refused(at::full({4}, 1e-250, at::kDouble), "scale them");
  KMeansData data(x, nullptr, at::tensor({1.0, 0.0, 1.0, 0.0}, at::kDouble));
  for (const KMeansInit init : kAll) EXPECT_THROW(initial_centres(data, 3, init, 0), UserError);
  EXPECT_THROW(mini_batch(data, x.slice(0, 0, 1), {.batch = 3}), UserError);
}

}  // namespace
}  // namespace dovetail::fit::testing::kmeans_weights_test
