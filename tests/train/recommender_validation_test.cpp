#include "dovetail/train/recommender/validation.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/file.h"
#include "dovetail/train/metrics/metrics.h"
#include "dovetail/train/metrics/ranking_metrics.h"
#include "tests/comm/ranks.h"
#include "tests/train/clicks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::recommender_validation_test {
namespace {

using test::Clicks;
using test::train_alone;
using ::testing::HasSubstr;
using ::testing::Not;

/// Scores of rows of seven groups, so close to each other that many share a bin of the histograms.
struct Rows {
  explicit Rows(int64_t count) {
    auto generator = at::detail::createCPUGenerator(1);
    labels = at::randint(0, 2, {count, 1}, generator, at::kFloat);
    logits = 0.01 * (at::randn({count, 1}, generator, at::TensorOptions(at::kFloat)) + labels);
    groups = at::arange(count) % 7;
  }

  ScoredRows scored(int64_t begin, int64_t end) const {
    ScoredRows found;
    const int64_t half = (begin + end) / 2;
    for (const auto& [first, last] : {std::pair(begin, half), std::pair(half, end)})
      found.add(logits.slice(0, first, last),
                {.labels = labels.slice(0, first, last), .groups = groups.slice(0, first, last)});
    return found;
  }

  at::Tensor logits, labels, groups;
};

TEST(ScoredRows, SeveralRanksSayHowFarTheirAucMayBeOff) {
  const Rows rows(3000);
  RunConfig config;
  config.rows.label = {"clicked"};
  const double exact = exact_auc(rows.logits.select(1, 0), rows.labels.select(1, 0)),
               grouped =
                   grouped_auc(rows.logits.select(1, 0), rows.labels.select(1, 0), rows.groups);
  for (const int ranks : {1, 2, 3}) {
    expect_all_succeed(ranks, [&](const std::shared_ptr<comm::Group>& group) {
      const int64_t begin = 3000 * group->rank() / ranks, end = 3000 * (group->rank() + 1) / ranks;
      const TaskRanking found = rows.scored(begin, end).measure(config, 3000, group).tasks.front();
      EXPECT_EQ(found.metrics.rows, 3000);
      EXPECT_EQ(found.gauc.has_value(), group->rank() == 0);
      if (group->rank() == 0) {
        EXPECT_NEAR(*found.gauc, grouped, 1e-12);
      }
      const nlohmann::ordered_json json = to_json(found);
      if (ranks == 1) {
        EXPECT_EQ(found.metrics.auc, exact);
        EXPECT_FALSE(json.contains("auc_error"));
        EXPECT_THAT(describe_auc(found.metrics), Not(HasSubstr("+-")));
        return;
      }
      EXPECT_NE(found.metrics.auc, exact);
      EXPECT_LE(std::abs(found.metrics.auc - exact), json["auc_error"].get<double>());
      EXPECT_LT(json["auc_error"].get<double>(), 0.05);
      EXPECT_THAT(describe_auc(found.metrics), HasSubstr(" +- 0.0"));
    });
  }
}

/// Runs a config and returns its standard error output.
std::string said(const RunConfig& config) {
  ::testing::internal::CaptureStderr();
  train_alone(config);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Warnings, NameWhatMakesARunPointless) {
  const Clicks data;
  std::string chance = "user\titem\tsize\tclicked\n", one_class = chance;
  for (uint64_t i = 0; i < 2000; ++i) {
    const uint64_t label = random_below(1, RandomStream::kTest, i, 2);
    chance += fmt::format("u{}\tv{}\t7\t{}\n", i % 20, i, label);
    one_class += fmt::format("u{}\ti{}\t{}\t0\n", i % 20, i % 10, i);
  }
  write_file_atomically(data.file("", "chance.tsv"), chance);
  write_file_atomically(data.file("", "one_class.tsv"), one_class);
  RunConfig config = data.config("deepfm", "chance");
  config.rows.files = {data.file("", "chance.tsv").string()};
  config.rows.sparse[1].num_rows = 100000;  // most validation ids do not occur in training rows
  config.train.steps = 4;
  config.eval.every_steps = 1;
  const std::string text = said(config);
  EXPECT_THAT(text, HasSubstr("warning: dense column `size` is 7 in all of the training rows"));
  EXPECT_THAT(text, HasSubstr("% of its ids in validation are in no training row"));
  EXPECT_THAT(text, HasSubstr("feature `item`"));
  EXPECT_THAT(text, Not(HasSubstr("feature `user`")));
  EXPECT_THAT(text, HasSubstr("stuck at 0.5"));
  config = data.config("deepfm", "one_class");
  config.rows.files = {data.file("", "one_class.tsv").string()};
  config.train.steps = 2;
  const std::string of_one_class = said(config);
  EXPECT_THAT(of_one_class, HasSubstr("label `clicked` is 0 in all of the training rows"));
  EXPECT_THAT(of_one_class, HasSubstr("negative"));
  EXPECT_TRUE(data.metrics("one_class").back()["auc"].is_null());
  config = data.config("deepfm", "good");
  config.train.steps = 100;
  EXPECT_THAT(said(config), Not(HasSubstr("warning")));
}

}  // namespace
}  // namespace dovetail::train::recommender_validation_test
