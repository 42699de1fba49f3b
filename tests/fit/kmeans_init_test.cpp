// Initial centres are rows, depend on the seed, and are spread as their names promise.
#include "dovetail/fit/kmeans/init.h"

#include <limits>
#include <set>

#include "tests/fit/testing.h"

namespace dovetail::fit::testing::kmeans_init_test {
namespace {

constexpr KMeansInit kAll[] = {KMeansInit::kPlusPlus, KMeansInit::kParallel, KMeansInit::kRandom,
                               KMeansInit::kFirst};

/// Returns tight, distant clouds of `rows` rows each; the first has a hundred times as many.
at::Tensor uneven_clouds(int64_t clouds, int64_t rows) {
  std::vector<at::Tensor> parts;
  for (int64_t c = 0; c < clouds; ++c)
    parts.push_back(normal({c == 0 ? 100 * rows : rows, 4}, static_cast<uint64_t>(c)) * 0.01 +
                    100 * normal({1, 4}, static_cast<uint64_t>(100 + c)));
  return at::cat(parts).to(at::kFloat);
}

/// Returns the number of centres that are equal to a row.
int64_t rows_among(const at::Tensor& centres, const at::Tensor& x) {
  return (at::cdist(centres, x.to(at::kDouble), 2, 2).amin(1) == 0).sum().item<int64_t>();
}

TEST(KMeansInit, TakesRowsAndTheSameOnesForASeedAndAnyNumberOfThreads) {
  const at::Tensor x = normal({2 * kKMeansGrain + 5, 3}, 1);
  for (const KMeansInit init : kAll) {
    at::Tensor first;
    for (const int threads : {1, 2}) {
      const Threads now(threads);
      KMeansData data(x);
      const at::Tensor centres = initial_centres(data, 12, init, 7);
      ASSERT_EQ(centres.sizes(), at::IntArrayRef({12, 3}));
      EXPECT_EQ(rows_among(centres, x), 12);
      if (first.defined()) expect_same_bits(centres, first);
      first = centres;
    }
    KMeansData data(x);
    EXPECT_EQ(at::equal(initial_centres(data, 12, init, 8), first), init == KMeansInit::kFirst);
  }
}

TEST(KMeansInit, FirstAreTheFirstAndRandomAreDifferentRows) {
  const at::Tensor x = at::arange(20, at::kFloat).unsqueeze(1);
  KMeansData data(x);
  EXPECT_TRUE(
      at::equal(initial_centres(data, 3, KMeansInit::kFirst, 0), x.slice(0, 0, 3).to(at::kDouble)));
  const at::Tensor all = initial_centres(data, 20, KMeansInit::kRandom, 3);
  EXPECT_TRUE(at::equal(std::get<0>(all.sort(0)), x.to(at::kDouble)));
}

TEST(KMeansInit, DrawsByDistanceFindEveryCloudHoweverSmall) {
  const at::Tensor x = uneven_clouds(8, 10);
  for (const KMeansInit init : {KMeansInit::kPlusPlus, KMeansInit::kParallel}) {
    for (const uint64_t seed : {1, 2, 3, 4, 5}) {
      KMeansData data(x);
      const at::Tensor centres = initial_centres(data, 8, init, seed);
      data.assign(centres);
      EXPECT_LT(data.distances(centres).squares.max().item<double>(), 1) << "a cloud has no centre";
    }
  }
}

TEST(KMeansInit, DrawsAreThoseOfOneSumOverAllRows) {
  const at::Tensor x = normal({50 * kKMeansGrain + 77, 3}, 1), points = some_rows(x, 3);
  KMeansData data(x);
  for (const int64_t count : {1, 2, 3}) {
    data.forget_closest();
    data.include(points.slice(0, 0, count));
    const at::Tensor squares =
        at::cdist(x.to(at::kDouble), points.slice(0, 0, count)).square().amin(1);
    const at::Tensor uniform =
        at::rand({200}, at::make_generator<at::CPUGeneratorImpl>(7), at::kDouble);
    const at::Tensor upto = squares.cumsum(0), place = uniform * upto[-1];
    const auto [rows, squares_of_rows] = data.draw(uniform);
    EXPECT_TRUE(at::allclose(squares_of_rows, squares.index_select(0, rows), 1e-13, 0));
    // If the sum is within rounding of the drawn place, the next row is also correct.
    const double near = 1e-9 * upto[-1].item<double>();
    EXPECT_TRUE((upto.index_select(0, rows) >= place - near).all().item<bool>());
    EXPECT_TRUE((upto.index_select(0, rows) - squares.index_select(0, rows) <= place + near)
                    .all()
                    .item<bool>());
    EXPECT_GT(std::get<0>(at::_unique(rows)).numel(), 190);
  }
}

// Float32 scores rule out most distances. Rows far from 0, close together, equal or huge must not
// be ruled out wrongly.
TEST(KMeansInit, ClosestDistancesAndPotentialsAreThoseOfFloat64) {
  for (const int64_t columns : {1, 3, 8, 20, 23, 37, 100})
    for (const double scale : {1.0, 1e-4, 1e15, 3e18}) {
      const at::Tensor near = normal({300, columns}, 1),
                       x = ((scale == 1e-4 ? near * scale + 100 : near * scale)).contiguous();
      const at::Tensor points = at::cat({some_rows(x, 20), some_rows(x, 3) * 1.0001});
      KMeansData data(x);
      const auto squares_to = [&](int64_t point) {
        return (x.to(at::kDouble) - points[point]).square().sum(1);
      };
      at::Tensor closest = at::full({300}, std::numeric_limits<double>::infinity(), at::kDouble);
      data.forget_closest();
      for (int64_t i = 0; i < points.size(0); ++i) {
        SCOPED_TRACE(fmt::format("{} columns, scale {}, point {}", columns, scale, i));
        closest = at::minimum(closest, squares_to(i));
        // Every other point has been a candidate. The next pass over the rows includes it.
        const double sum = i % 2 == 0 ? data.include(points.slice(0, i, i + 1)) : data.choose(i);
        if (i % 3 == 0) {
          EXPECT_TRUE(at::allclose(data.closest(), closest, 1e-13, 0));
        }
        EXPECT_NEAR(sum, closest.sum().item<double>(), 1e-12 * sum);
        const at::Tensor found = data.potentials(points);
        for (int64_t j = 0; j < points.size(0); ++j) {
          const double expected = at::minimum(closest, squares_to(j)).sum().item<double>();
          EXPECT_NEAR(found[j].item<double>(), expected, 1e-12 * expected);
        }
      }
    }
}

TEST(KMeansInit, RepeatsARowWhereFewerDiffer) {
  const at::Tensor x = at::tensor({1.0f, 1.0f, 2.0f, 2.0f, 2.0f}).unsqueeze(1);
  for (const KMeansInit init : {KMeansInit::kPlusPlus, KMeansInit::kParallel}) {
    KMeansData data(x);
    const at::Tensor centres = initial_centres(data, 4, init, 1);
    EXPECT_EQ(rows_among(centres, x), 4);
    data.assign(centres);
    EXPECT_EQ(data.distances(centres).inertia, 0);
  }
}

TEST(KMeansInit, RefusesMoreCentresThanRowsAndUnknownNames) {
  KMeansData data(normal({4, 2}, 1));
  for (const KMeansInit init : kAll) {
    EXPECT_THROW(initial_centres(data, 5, init, 0), UserError);
    EXPECT_THROW(initial_centres(data, 0, init, 0), UserError);
  }
  EXPECT_EQ(parse_kmeans_init("k-means-parallel"), KMeansInit::kParallel);
  EXPECT_THROW(parse_kmeans_init("kmeans"), UserError);
  EXPECT_FALSE(is_kmeans_init("kmeans"));
}

}  // namespace
}  // namespace dovetail::fit::testing::kmeans_init_test
