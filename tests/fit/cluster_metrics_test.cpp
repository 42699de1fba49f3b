// Compares silhouette and principal components with their definitions.
#include "dovetail/fit/kmeans/cluster_metrics.h"

#include <cmath>
#include <map>

#include "tests/fit/testing.h"

namespace dovetail::fit::testing::cluster_metrics_test {
namespace {

double silhouette_reference(const at::Tensor& x, const at::Tensor& labels) {
  const int64_t n = x.size(0);
  const auto* label = labels.const_data_ptr<int32_t>();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    std::map<int32_t, std::pair<double, int64_t>> of_cluster;  // distances, and how many
    for (int64_t j = 0; j < n; ++j) {
      if (j == i) continue;
      auto& [distances, count] = of_cluster[label[j]];
      distances += (x[i] - x[j]).to(at::kDouble).norm().item<double>();
      ++count;
    }
    const auto own = of_cluster.find(label[i]);
    if (own == of_cluster.end()) continue;  // alone
    const double a = own->second.first / static_cast<double>(own->second.second);
    double b = std::numeric_limits<double>::infinity();
    for (const auto& [cluster, d] : of_cluster)
      if (cluster != label[i]) b = std::min(b, d.first / static_cast<double>(d.second));
    sum += (b - a) / std::max(a, b);
  }
  return sum / static_cast<double>(n);
}

TEST(Silhouette, IsThatOfItsDefinitionWithLabelsLeftOutAndARowAlone) {
  const at::Tensor x = normal({40, 3}, 1);
  at::Tensor labels = (at::arange(40, at::kInt) % 3 * 5).to(at::kInt);  // 0, 5 and 10
  labels[7] = 99;
  EXPECT_NEAR(silhouette(x, labels), silhouette_reference(x, labels), 1e-6);
}

TEST(Silhouette, OfOneClusterIsNone) {
  EXPECT_TRUE(std::isnan(silhouette(normal({5, 2}, 1), at::zeros({5}, at::kInt))));
}

PicturePlane plane_of_one_cluster(const at::Tensor& x) {
  return picture_plane(x, at::zeros({x.size(0)}, at::kInt), x.mean(0, /*keepdim=*/true));
}

TEST(PicturePlane, OfOneClusterHoldsTheLargestEigenvaluesOfTheCovariance) {
  const at::Tensor x = normal({300, 5}, 1) * at::tensor({1.0f, 6.0f, 1.0f, 3.0f, 1.0f}) + 100;
  const PicturePlane plane = plane_of_one_cluster(x);
  EXPECT_FALSE(plane.has_units);
  const at::Tensor centred = x.to(at::kDouble) - x.to(at::kDouble).mean(0);
  const at::Tensor variances =
      std::get<0>(at::linalg_eigh(centred.t().matmul(centred) / 300));  // ascending
  const double all = variances.sum().item<double>();
  for (int64_t i = 0; i < 2; ++i) {
    const double largest = variances[4 - i].item<double>();
    const at::Tensor direction = plane.directions.select(1, i);
    EXPECT_NEAR(direction.norm().item<double>(), 1, 1e-12);
    EXPECT_NEAR(centred.matmul(direction).square().mean().item<double>(), largest, 1e-9 * largest);
    EXPECT_NEAR(plane.share[i], largest / all, 1e-9);
    EXPECT_GT(direction[direction.abs().argmax()].item<double>(), 0);
    EXPECT_LT(
        (plane.project(x).select(1, i) - centred.matmul(direction)).abs().max().item<double>(),
        1e-9);
  }
  EXPECT_NEAR(plane.directions.select(1, 0).dot(plane.directions.select(1, 1)).item<double>(), 0,
              1e-12);
}

TEST(PicturePlane, HoldsTheDirectionsInWhichTheCentresDiffer) {
  // Three clusters that differ in columns 2 and 3, beside wider columns that say nothing.
  const at::Tensor labels = (at::arange(300, at::kInt) % 3).to(at::kInt);
  const at::Tensor centres = at::tensor({0.0, 0.0, 0.0, 0.0, 0.0,  //
                                         0.0, 0.0, 1.0, 0.0, 0.0,  //
                                         0.0, 0.0, 0.0, 2.0, 0.0})
                                 .view({3, 5});
  const at::Tensor x = normal({300, 5}, 2) * at::tensor({5.0f, 4.0f, 1.0f, 1.0f, 3.0f}) +
                       centres.index_select(0, labels.to(at::kLong));
  const PicturePlane plane = picture_plane(x, labels, centres);
  const at::Tensor within = plane.directions.narrow(0, 2, 2);
  EXPECT_NEAR(within.square().sum().item<double>(), 2, 1e-12);
  EXPECT_GT(plane.directions[3][0].item<double>(), 0.8) << "they differ most in column 3";
}

TEST(PicturePlane, DividesColumnsOfVeryDifferentScaleByTheirQuartiles) {
  at::Tensor x = normal({401, 4}, 1) * at::tensor({1.0f, 1e6f, 1e-3f, 0.0f}) + 7;
  x[0][1] = 1e12f;  // an outlier, which leaves the quartiles as they are
  const PicturePlane plane = plane_of_one_cluster(x);
  EXPECT_TRUE(plane.has_units);
  const at::Tensor rows = x.to(at::kDouble),
                   range = std::get<0>(rows.sort(0))[300] - std::get<0>(rows.sort(0))[100];
  for (int64_t column = 0; column < 3; ++column)
    EXPECT_EQ(plane.unit[column].item<double>(), range[column].item<double>());
  EXPECT_EQ(plane.unit[3].item<double>(), 1) << "a constant column";
}

TEST(PicturePlane, OfOneRowOrOneColumnHasNoSecondDirection) {
  for (const at::Tensor& x : {normal({1, 4}, 1), normal({6, 1}, 1)}) {
    const PicturePlane plane = plane_of_one_cluster(x);
    EXPECT_EQ(plane.directions.sizes(), at::IntArrayRef({x.size(1), 2}));
    EXPECT_EQ(plane.directions.select(1, 1).norm().item<double>(), 0);
    EXPECT_EQ(plane.share[1], 0);
  }
}

}  // namespace
}  // namespace dovetail::fit::testing::cluster_metrics_test
