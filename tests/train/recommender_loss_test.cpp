#include "dovetail/train/recommender/loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/comm/ranks.h"
#include "tests/ops/testing.h"

namespace dovetail::train::recommender_loss_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Labels of three tasks, the second one known of few rows, the third of none.
at::Tensor labels_of(int64_t rows) {
  at::Tensor labels = at::empty({rows, 3});
  for (int64_t b = 0; b < rows; ++b) {
    labels[b][0].fill_(b % 3 == 0 ? 1.0F : 0.0F);
    labels[b][1].fill_(b % 4 == 1 ? (b % 8 == 1 ? 1.0F : 0.25F) : kNaN);
    labels[b][2].fill_(kNaN);
  }
  return labels;
}

/// Sum over tasks of weight times the mean over rows that have the label.
double by_definition(const at::Tensor& logits, const at::Tensor& labels,
                     const std::vector<double>& weights) {
  double loss = 0;
  for (int64_t k = 0; k < labels.size(1); ++k) {
    double sum = 0;
    int rows = 0;
    for (int64_t b = 0; b < labels.size(0); ++b) {
      const auto y = labels[b][k].item<double>(), z = logits[b][k].item<double>();
      if (std::isnan(y)) continue;
      sum -= y * std::log(1 / (1 + std::exp(-z))) + (1 - y) * std::log(1 - 1 / (1 + std::exp(-z)));
      ++rows;
    }
    if (rows > 0) loss += weights[static_cast<size_t>(k)] * sum / rows;
  }
  return loss;
}

TEST(RecommenderLoss, IsTheSumOfTheTasksMeansHoweverTheBatchIsCut) {
  const auto group = comm::local_groups(1).front();
  const at::Tensor labels = labels_of(30), logits = testing::normal({30, 3}, 1);
  for (const std::vector<double>& weights : {std::vector<double>{}, {1, 0.5, 3}}) {
    const at::Tensor scales = task_scales(labels, weights, *group);
    for (const int64_t part : {30, 7, 1}) {
      double sum = 0;
      for (int64_t first = 0; first < 30; first += part) {
        const int64_t count = std::min<int64_t>(part, 30 - first);
        sum += loss_sum(logits.narrow(0, first, count), labels.narrow(0, first, count), scales)
                   .item<double>();
      }
      EXPECT_NEAR(
          sum / 30,
          by_definition(logits, labels, weights.empty() ? std::vector<double>{1, 1, 1} : weights),
          1e-5);
    }
  }
}

TEST(RecommenderLoss, AMaskedLabelHasNoGradient) {
  const auto group = comm::local_groups(1).front();
  const at::Tensor labels = labels_of(16), logits = testing::normal({16, 3}, 1).requires_grad_();
  loss_sum(logits, labels, task_scales(labels, {}, *group)).backward();
  EXPECT_TRUE(at::equal(logits.grad().ne(0), labels.isnan().logical_not()));
}

TEST(RecommenderLoss, OneTaskIsTheCrossEntropyToTheBit) {
  const auto group = comm::local_groups(1).front();
  const at::Tensor labels = labels_of(30).narrow(1, 0, 1), logits = testing::normal({30, 1}, 1);
  const at::Tensor plain =
      at::binary_cross_entropy_with_logits(logits, labels, {}, {}, at::Reduction::Sum);
  EXPECT_TRUE(at::equal(loss_sum(logits, labels, task_scales(labels, {}, *group)), plain));
}

TEST(RecommenderLoss, RanksCountTheLabelsOfAll) {
  const at::Tensor labels = labels_of(30), logits = testing::normal({30, 3}, 1);
  const double expected = by_definition(logits, labels, {1, 1, 1});
  expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
    const int64_t first = group->rank() == 0 ? 0 : 13, count = group->rank() == 0 ? 13 : 17;
    const at::Tensor own = labels.narrow(0, first, count);
    at::Tensor sum =
        loss_sum(logits.narrow(0, first, count), own, task_scales(own, {}, *group)).to(at::kDouble);
    group->all_reduce(sum);
    EXPECT_NEAR(sum.item<double>() / 30, expected, 1e-5);
  });
}

}  // namespace
}  // namespace dovetail::train::recommender_loss_test
