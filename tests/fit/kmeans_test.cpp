// Compares one assignment of k-means with its definition in float64.
#include "dovetail/fit/kmeans/kmeans.h"

#include <cmath>

#include "tests/fit/testing.h"

namespace dovetail::fit::testing::kmeans_test {
namespace {

void expect_as_reference(const at::Tensor& x, const at::Tensor& centres, const std::string& what) {
  SCOPED_TRACE(what);
  const Reference expected = assign_reference(x, centres);
  KMeansData data(x);
  const jobs::Partial partial = data.assign(centres);
  EXPECT_TRUE(at::equal(data.labels(), expected.labels));
  EXPECT_TRUE(at::equal(partial.tensors[1], expected.counts));
  expect_same_bits(partial.tensors[0], expected.sums, "sums");
  EXPECT_EQ(partial.tensors[2].item<int64_t>(), x.size(0)) << "labels were -1 before";
  EXPECT_EQ(partial.weight, static_cast<double>(x.size(0)));
  const double square = x.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(data.distances(centres).inertia, expected.inertia, 1e-12 * expected.inertia);
  EXPECT_NEAR(data.inertia_of(partial, centres), expected.inertia,
              1e-9 * expected.inertia + 1e-13 * square);
  EXPECT_EQ(data.assign(centres).tensors[2].item<int64_t>(), 0)
      << "the same centres change no label";
}

TEST(KMeansAssign, IsTheNearestCentreInFloat64ForEveryShape) {
  at_every_simd_level([] {
    for (const auto& [rows, dim] :
         {std::pair<int64_t, int64_t>{1, 1}, {31, 2}, {33, 17}, {65, 16}, {130, 100}, {7, 300}}) {
      for (const int64_t k : {1, 2, 5, 6, 7, 12, 13, 29}) {
        const at::Tensor x = normal({rows, dim}, static_cast<uint64_t>(rows + dim));
        expect_as_reference(x, normal({k, dim}, 5, at::kDouble),
                            fmt::format("{} x {}, {} centres", rows, dim, k));
      }
    }
  });
}

TEST(KMeansAssign, SurvivesColumnsOfVeryDifferentScaleAndOffset) {
  at_every_simd_level([] {
    for (const int64_t k : {3, 20}) {
      const at::Tensor x = raw_features(500, 23, 2 * k, 11);
      expect_as_reference(x, some_rows(x, k), fmt::format("{} centres", k));
    }
  });
}

TEST(KMeansAssign, DecidesInFloat64WhatFloat32CannotTell) {
  // Rows are near the middle of two centres, 2^-20 to one side. This is far below the rounding of
  // |x|^2 - 2 x c + |c|^2.
  at_every_simd_level([] {
    for (const int64_t k : {2, 9}) {
      const int64_t dim = 40;
      const at::Tensor centres =
          at::cat({normal({1, dim}, 3, at::kDouble), normal({k - 1, dim}, 4, at::kDouble) * 8});
      const at::Tensor a = centres[0], b = centres[1];
      const at::Tensor step = (at::arange(200, at::kDouble) % 2 * 2 - 1).unsqueeze(1) * 0x1p-20;
      const at::Tensor x = ((a + b) / 2 + step * (b - a)).to(at::kFloat).contiguous();
      expect_as_reference(x, centres, fmt::format("{} centres", k));
    }
  });
}

TEST(KMeansAssign, TakesTheFirstOfEqualCentres) {
  at_every_simd_level([] {
    for (const int64_t k : {2, 6, 14}) {
      const at::Tensor x = normal({50, 20}, 1);
      KMeansData data(x);
      data.assign(normal({1, 20}, 2, at::kDouble).expand({k, 20}));
      EXPECT_EQ(data.labels().abs().sum().item<int64_t>(), 0) << k;
    }
  });
}

TEST(KMeansAssign, DecidesWhereSquaresOverflowOrUnderflowInFloat32) {
  at_every_simd_level([] {
    for (const double scale : {1e-30, 1e-22, 1e25, 1e37}) {
      const at::Tensor x = (normal({60, 18}, 1, at::kDouble) * scale).to(at::kFloat);
      for (const int64_t k : {4, 15}) {
        KMeansData data(x);
        const at::Tensor centres = normal({k, 18}, 2, at::kDouble) * scale;
        data.assign(centres);
        EXPECT_TRUE(at::equal(data.labels(), assign_reference(x, centres).labels))
            << scale << ", " << k;
      }
    }
  });
}

TEST(KMeansAssign, IsTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor x = raw_features(3 * kKMeansGrain + 77, 5, 9, 2), centres = some_rows(x, 9);
  KMeansData data(x);
  std::vector<jobs::Partial> partials;
  for (const int threads : {1, 2, 3}) {
    const Threads now(threads);
    partials.push_back(data.assign(centres));
  }
  for (const jobs::Partial& partial : partials) {
    expect_same_bits(partial.tensors[0], partials[0].tensors[0], "sums");
    EXPECT_TRUE(at::equal(partial.tensors[1], partials[0].tensors[1]));
  }
}

TEST(KMeansAssign, IsTheSameBitsOnAvx2AndAvx512) {
  for (const int64_t k : {3, 11}) {
    // Pairs of centres differ by less than float32 resolves. The nearer one is decided in float64.
    const at::Tensor x = raw_features(2000, 37, 11, 6), some = some_rows(x, k);
    const at::Tensor centres = at::cat({some, some + normal({k, 37}, 7, at::kDouble) * 1e-9});
    KMeansData data(x);
    std::vector<at::Tensor> sums;
    at_every_simd_level([&] {
      if (ops::simd_level() != ops::SimdLevel::kScalar)
        sums.push_back(data.assign(centres).tensors[0]);
    });
    for (const at::Tensor& other : sums) expect_same_bits(other, sums[0]);
  }
}

TEST(KMeansAssign, NamesAValueThatIsNotFinite) {
  at::Tensor x = normal({40000, 3}, 1);
  x[33333][2] = std::numeric_limits<float>::quiet_NaN();
  try {
    KMeansData data(x);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "kmeans: nan in row 33333, column 2 of x");
  }
}

TEST(KMeansAssign, RefusesWhatIsNoMatrixOfFloat32AndOtherCentres) {
  EXPECT_THROW(KMeansData(normal({4, 3}, 1, at::kDouble)), UserError);
  EXPECT_THROW(KMeansData(normal({4}, 1)), UserError);
  EXPECT_THROW(KMeansData(normal({4, 3}, 1).t()), UserError);
  EXPECT_THROW(KMeansData(at::empty({0, 3})), UserError);
  KMeansData data(normal({4, 3}, 1));
  EXPECT_THROW(data.assign(normal({2, 4}, 1, at::kDouble)), UserError);
  EXPECT_THROW(data.assign(at::full({2, 3}, std::nan(""), at::kDouble)), UserError);
}

TEST(KMeansAssign, KnowsTheVarianceOfTheColumns) {
  const at::Tensor x = raw_features(700, 9, 4, 3);
  KMeansData data(x);
  const double expected = x.to(at::kDouble).var(0, false).mean().item<double>();
  EXPECT_NEAR(data.mean_variance(data.assign(some_rows(x, 4))), expected, 1e-9 * expected);
}

}  // namespace
}  // namespace dovetail::fit::testing::kmeans_test
