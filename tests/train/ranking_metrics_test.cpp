// Compares metrics with their definitions in plain loops, and with scikit-learn
// (ranking_oracle.py).
#include "dovetail/train/metrics/ranking_metrics.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "dovetail/base/file.h"
#include "dovetail/base/rng.h"
#include "tests/base/temporary_folder.h"
#include "tests/folder.h"

namespace dovetail::train::ranking_metrics_test {
namespace {

using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Rows {
  at::Tensor logits, labels, groups;
};

/// Returns logits with `levels` different values (0: all different) that correlate with the label.
Rows random_rows(int64_t n, int64_t levels, uint64_t seed = 1) {
  Rows rows{at::empty({n}, at::kFloat), at::empty({n}, at::kFloat), at::empty({n}, at::kLong)};
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<uint64_t>(i);
    const bool positive = random_uniform(seed, RandomStream::kTest, 2 * at) < 0.3;
    double logit =
        random_normal(seed + 1, RandomStream::kTest, at)[0] * 1.5 + (positive ? 0.5 : -1.0);
    if (levels > 0)
      logit = std::round(logit * static_cast<double>(levels)) / static_cast<double>(levels);
    rows.logits[i] = logit;
    rows.labels[i] = positive ? 1.0 : 0.0;
    rows.groups[i] = static_cast<int64_t>(random_below(seed + 2, RandomStream::kTest, at, 7)) - 3;
  }
  return rows;
}

/// The definition: over all pairs of a positive and a negative.
double pairwise_auc(const Rows& rows, int64_t group = -99) {
  double right = 0, pairs = 0;
  for (int64_t i = 0; i < rows.labels.numel(); ++i)
    for (int64_t j = 0; j < rows.labels.numel(); ++j) {
      if (rows.labels[i].item<float>() != 1 || rows.labels[j].item<float>() != 0) continue;
      if (group != -99 &&
          (rows.groups[i].item<int64_t>() != group || rows.groups[j].item<int64_t>() != group))
        continue;
      const float a = rows.logits[i].item<float>(), b = rows.logits[j].item<float>();
      right += a > b ? 1 : a == b ? 0.5 : 0;
      ++pairs;
    }
  return right / pairs;
}

RankingMetrics metrics_of(const Rows& rows) {
  RankingSums sums;
  sums.add(rows.logits, rows.labels);
  return sums.metrics();
}

TEST(Ranking, AucIsTheShareOfPairsRankedRightly) {
  for (const int64_t levels : {0, 1, 4}) {
    const Rows rows = random_rows(120, levels);
    EXPECT_NEAR(exact_auc(rows.logits, rows.labels), pairwise_auc(rows), 1e-12) << levels;
  }
  EXPECT_EQ(exact_auc(at::tensor({1.0f, 2.0f}), at::tensor({0.0f, 1.0f})), 1);
  EXPECT_EQ(exact_auc(at::tensor({2.0f, 1.0f}), at::tensor({0.0f, 1.0f})), 0);
  EXPECT_EQ(exact_auc(at::tensor({1.0f, 1.0f}), at::tensor({0.0f, 1.0f})), 0.5);
}

TEST(Ranking, GroupedAucWeighsGroupsByTheirRows) {
  Rows rows = random_rows(200, 3);
  // Group 50 has one class: it has no AUC and no weight.
  for (int64_t i = 0; i < 20; ++i) {
    rows.groups[i] = 50;
    rows.labels[i] = 1.0;
  }
  double sum = 0, weight = 0;
  for (int64_t group = -3; group < 4; ++group) {
    double size = 0;
    for (int64_t i = 0; i < 200; ++i) size += rows.groups[i].item<int64_t>() == group;
    sum += size * pairwise_auc(rows, group);
    weight += size;
  }
  EXPECT_NEAR(grouped_auc(rows.logits, rows.labels, rows.groups), sum / weight, 1e-12);
}

TEST(Ranking, HistogramsKeepTheirBound) {
  for (const int64_t levels : {0, 4}) {
    const Rows rows = random_rows(5000, levels);
    const RankingMetrics m = metrics_of(rows);
    const double exact = exact_auc(rows.logits, rows.labels);
    EXPECT_LE(std::abs(m.auc - exact), m.auc_error + 1e-12);
    EXPECT_LT(m.auc_error, levels == 0 ? 1e-3 : 1e-1);
  }
  // Different logits share a bin. The error is half of the pairs, which equals the bound.
  const Rows close{at::tensor({0.00001f, 0.00002f}), at::tensor({0.0f, 1.0f}), {}};
  EXPECT_EQ(exact_auc(close.logits, close.labels), 1);
  EXPECT_EQ(metrics_of(close).auc, 0.5);
  EXPECT_EQ(metrics_of(close).auc_error, 0.5);
  // The outer bins are open.
  const Rows far{at::tensor({-1000.0f, 1000.0f}), at::tensor({0.0f, 1.0f}), {}};
  EXPECT_EQ(metrics_of(far).auc, 1);
}

TEST(Ranking, SumsOfPartsAreThoseOfTheWhole) {
  const Rows rows = random_rows(1000, 0);
  RankingSums whole, parts;
  whole.add(rows.logits, rows.labels);
  for (int64_t begin = 0; begin < 1000; begin += 250) {
    RankingSums part;
    part.add(rows.logits.narrow(0, begin, 250), rows.labels.narrow(0, begin, 250));
    parts.counts += part.counts;
    parts.sums += part.sums;
  }
  EXPECT_TRUE(parts.counts.equal(whole.counts));
  EXPECT_EQ(parts.metrics().auc, whole.metrics().auc);
  EXPECT_NEAR(parts.metrics().log_loss, whole.metrics().log_loss, 1e-12);
}

TEST(Ranking, LossesAreTheirDefinitions) {
  const Rows rows = random_rows(500, 0);
  double loss = 0, predicted = 0, positives = 0;
  for (int64_t i = 0; i < 500; ++i) {
    const double p = 1 / (1 + std::exp(-rows.logits[i].item<double>()));
    const double y = rows.labels[i].item<double>();
    loss -= y * std::log(p) + (1 - y) * std::log(1 - p);
    predicted += p;
    positives += y;
  }
  const double mean = positives / 500;
  const RankingMetrics m = metrics_of(rows);
  EXPECT_EQ(m.rows, 500);
  EXPECT_EQ(m.positives, static_cast<int64_t>(positives));
  EXPECT_NEAR(m.log_loss, loss / 500, 1e-12);
  EXPECT_NEAR(m.normalized_entropy,
              loss / 500 / (-mean * std::log(mean) - (1 - mean) * std::log(1 - mean)), 1e-12);
  EXPECT_NEAR(m.calibration, predicted / positives, 1e-12);
  // A prediction of the mean has normalized entropy 1 and perfect calibration.
  const Rows constant{at::full({500}, std::log(mean / (1 - mean)), at::kDouble), rows.labels, {}};
  EXPECT_NEAR(metrics_of(constant).normalized_entropy, 1, 1e-12);
  EXPECT_NEAR(metrics_of(constant).calibration, 1, 1e-12);
  EXPECT_EQ(metrics_of(constant).auc, 0.5);
  // No overflow.
  const Rows wrong{at::tensor({-1e30f, 800.0f}), at::tensor({1.0f, 0.0f}), {}};
  EXPECT_NEAR(metrics_of(wrong).log_loss, 5e29, 1e24);
}

TEST(Ranking, MaskedRowsAreLeftOutAndNaNStays) {
  const Rows rows = random_rows(100, 0);
  const Rows masked{at::cat({rows.logits, at::full({3}, kNaN, at::kFloat)}),
                    at::cat({rows.labels, at::full({3}, kNaN, at::kFloat)}),
                    {}};
  EXPECT_EQ(metrics_of(masked).rows, 100);
  EXPECT_EQ(metrics_of(masked).log_loss, metrics_of(rows).log_loss);
  EXPECT_EQ(exact_auc(masked.logits, masked.labels), exact_auc(rows.logits, rows.labels));
  const Rows broken{at::tensor({1.0f, static_cast<float>(kNaN)}), at::tensor({0.0f, 1.0f}), {}};
  EXPECT_TRUE(std::isnan(metrics_of(broken).auc));
  EXPECT_TRUE(std::isnan(metrics_of(broken).log_loss));
  EXPECT_TRUE(std::isnan(exact_auc(broken.logits, broken.labels)));
}

TEST(Ranking, OneClassHasNoAuc) {
  for (const float label : {0.0f, 1.0f}) {
    const Rows rows{at::tensor({1.0f, 2.0f}), at::tensor({label, label}), {}};
    EXPECT_TRUE(std::isnan(metrics_of(rows).auc));
    EXPECT_TRUE(std::isnan(metrics_of(rows).normalized_entropy));
    EXPECT_TRUE(std::isnan(exact_auc(rows.logits, rows.labels)));
    const std::vector<RankingMetrics> history = {metrics_of(rows)};
    EXPECT_THAT(ranking_warnings(history),
                ::testing::ElementsAre(HasSubstr(label == 0 ? "negative" : "positive")));
  }
  EXPECT_TRUE(std::isnan(RankingSums().metrics().log_loss));
}

TEST(Ranking, WarnsOfAnAucThatStays) {
  RankingMetrics chance;
  chance.rows = 100000;
  chance.positives = 20000;
  chance.auc = 0.503;
  RankingMetrics better = chance;
  better.auc = 0.52;
  const auto warnings = [](std::vector<RankingMetrics> history) {
    return ranking_warnings(history);
  };
  EXPECT_THAT(warnings({chance, chance, chance}),
              ::testing::ElementsAre(HasSubstr("stuck at 0.5")));
  EXPECT_THAT(warnings({better, chance, chance, chance}), ::testing::SizeIs(1));
  EXPECT_THAT(warnings({chance, chance}), ::testing::IsEmpty());
  EXPECT_THAT(warnings({chance, chance, better}), ::testing::IsEmpty());
  EXPECT_THAT(warnings({better, chance, chance}), ::testing::IsEmpty());
  // With few rows 0.52 may be chance: three standard deviations for 400 rows with 100 positives are
  // 0.1.
  better.rows = 400;
  better.positives = 100;
  EXPECT_THAT(warnings({better, better, better}), ::testing::SizeIs(1));
  EXPECT_THAT(warnings({}), ::testing::IsEmpty());
}

TEST(Ranking, AgreesWithScikitLearn) {
  const char* python = std::getenv("DOVETAIL_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "DOVETAIL_PYTHON is not set";
  const test::TemporaryFolder folder;
  const auto in = folder.path() / "rows.json", out = folder.path() / "metrics.json";
  nlohmann::json sets = nlohmann::json::array();
  std::vector<Rows> all;
  for (const int64_t levels : {0, 3}) {
    all.push_back(random_rows(2000, levels));
    const Rows& rows = all.back();
    sets.push_back({{"logits", std::vector<float>(rows.logits.data_ptr<float>(),
                                                  rows.logits.data_ptr<float>() + 2000)},
                    {"labels", std::vector<float>(rows.labels.data_ptr<float>(),
                                                  rows.labels.data_ptr<float>() + 2000)}});
  }
  std::ofstream(in) << sets;
  const std::string script = (test::tests_folder() / "train/ranking_oracle.py").string() + " '" +
                             in.string() + "' '" + out.string() + "'";
  ASSERT_EQ(std::system((std::string(python) + " " + script).c_str()), 0);
  const auto theirs = nlohmann::json::parse(read_file(out));
  for (size_t i = 0; i < all.size(); ++i) {
    const RankingMetrics m = metrics_of(all[i]);
    EXPECT_NEAR(exact_auc(all[i].logits, all[i].labels), theirs[i]["auc"].get<double>(), 1e-12);
    EXPECT_NEAR(m.log_loss, theirs[i]["log_loss"].get<double>(), 1e-9);
  }
}

}  // namespace
}  // namespace dovetail::train::ranking_metrics_test
