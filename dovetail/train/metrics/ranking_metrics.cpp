#include "dovetail/train/metrics/ranking_metrics.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dovetail/base/error.h"

namespace dovetail::train {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();
constexpr double kBinsPerUnit = 1024, kLargestLogit = 32;
static_assert(2 * kLargestLogit * kBinsPerUnit == RankingSums::kBins);

/// Number of (positive, negative) pairs that scores order correctly. Each call of `add_ties` adds
/// the rows of one score; scores come from low to high. Correct pairs count 2 and ties count 1, so
/// that the sum is a whole number.
class PairCount {
 public:
  void add_ties(uint64_t negatives, uint64_t positives) {
    doubled_ += positives * (2 * negatives_ + negatives);
    tied_ += positives * negatives;
    negatives_ += negatives;
    positives_ += positives;
  }
  double auc() const { return share(doubled_) / 2; }
  double tied_share() const { return share(tied_); }

 private:
  double share(uint64_t pairs) const {
    const double all = static_cast<double>(negatives_) * static_cast<double>(positives_);
    return all == 0 ? kUndefined : static_cast<double>(pairs) / all;
  }
  uint64_t doubled_ = 0, tied_ = 0, negatives_ = 0, positives_ = 0;
};

struct Scored {
  double score = 0;
  bool positive = false;
};

/// Returns the AUC of rows in any order. Sorts the rows.
double auc_of(std::span<Scored> rows) {
  std::sort(rows.begin(), rows.end(),
            [](const Scored& a, const Scored& b) { return a.score < b.score; });
  PairCount pairs;
  for (size_t at = 0; at < rows.size();) {
    const double score = rows[at].score;
    uint64_t ties[2] = {0, 0};
    for (; at < rows.size() && rows[at].score == score; ++at) ++ties[rows[at].positive ? 1 : 0];
    pairs.add_ties(ties[0], ties[1]);
  }
  return pairs.auc();
}

at::Tensor vector_of(const at::Tensor& values, const char* name) {
  DOVETAIL_CHECK(values.dim() == 1 && values.is_floating_point(), "{} has {} dimensions of {}",
                 name, values.dim(), c10::toString(values.scalar_type()));
  return values.detach().to(at::kCPU, at::kDouble).contiguous();
}

int64_t bin_of(double logit) {
  const double bin = std::floor((logit + kLargestLogit) * kBinsPerUnit);
  return static_cast<int64_t>(std::clamp(bin, 0.0, static_cast<double>(RankingSums::kBins - 1)));
}

/// ln(1 + exp(z)) without overflow.
double softplus(double z) { return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))); }

}  // namespace

RankingSums::RankingSums()
    : counts(at::zeros({2, kBins}, at::kLong)), sums(at::zeros({3}, at::kDouble)) {}

void RankingSums::add(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor logits_n = vector_of(logits, "logits"), labels_n = vector_of(labels, "labels");
  DOVETAIL_CHECK(logits_n.numel() == labels_n.numel(), "{} logits, {} labels", logits_n.numel(),
                 labels_n.numel());
  const auto* const z = logits_n.const_data_ptr<double>();
  const auto* const y = labels_n.const_data_ptr<double>();
  auto* const count = counts.mutable_data_ptr<int64_t>();
  auto* const sum = sums.mutable_data_ptr<double>();
  for (int64_t i = 0; i < labels_n.numel(); ++i) {
    if (std::isnan(y[i])) continue;
    // A NaN has no bin. It makes the sums NaN, and thereby all metrics.
    ++count[(y[i] > 0.5 ? kBins : 0) + (std::isnan(z[i]) ? 0 : bin_of(z[i]))];
    sum[0] += softplus(z[i]) - y[i] * z[i];
    sum[1] += 1 / (1 + std::exp(-z[i]));
    sum[2] += y[i];
  }
}

RankingMetrics RankingSums::metrics() const {
  const auto* const negatives = counts.const_data_ptr<int64_t>();
  const int64_t* const positives = negatives + kBins;
  const auto* const sum = sums.const_data_ptr<double>();
  RankingMetrics m;
  PairCount pairs;
  for (int64_t b = 0; b < kBins; ++b) {
    pairs.add_ties(static_cast<uint64_t>(negatives[b]), static_cast<uint64_t>(positives[b]));
    m.rows += negatives[b] + positives[b];
    m.positives += positives[b];
  }
  const auto rows = static_cast<double>(m.rows);
  const bool valid = !std::isnan(sum[1]);
  const double mean = sum[2] / rows;
  const double entropy = -(mean * std::log(mean) + (1 - mean) * std::log1p(-mean));
  m.auc = valid ? pairs.auc() : kUndefined;
  m.auc_error = valid ? pairs.tied_share() / 2 : kUndefined;
  m.log_loss = m.rows > 0 ? sum[0] / rows : kUndefined;
  m.normalized_entropy = mean > 0 && mean < 1 ? m.log_loss / entropy : kUndefined;
  m.calibration = sum[2] > 0 ? sum[1] / sum[2] : kUndefined;
  return m;
}

double exact_auc(const at::Tensor& scores, const at::Tensor& labels) {
  return grouped_auc(scores, labels, at::zeros({scores.numel()}, at::kLong));
}

double grouped_auc(const at::Tensor& scores, const at::Tensor& labels, const at::Tensor& groups) {
  const at::Tensor scores_n = vector_of(scores, "scores"), labels_n = vector_of(labels, "labels");
  const at::Tensor groups_n = groups.to(at::kCPU, at::kLong).contiguous();
  DOVETAIL_CHECK(scores_n.numel() == labels_n.numel() && scores_n.sizes() == groups_n.sizes(),
                 "{} scores, {} labels, {} groups", scores_n.numel(), labels_n.numel(),
                 groups_n.numel());
  const auto* const score = scores_n.const_data_ptr<double>();
  const auto* const label = labels_n.const_data_ptr<double>();
  const auto* const group = groups_n.const_data_ptr<int64_t>();
  std::vector<int64_t> order;
  for (int64_t i = 0; i < labels_n.numel(); ++i) {
    if (std::isnan(label[i])) continue;
    if (std::isnan(score[i])) return kUndefined;
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return group[a] < group[b]; });
  std::vector<Scored> rows;
  double sum = 0, weight = 0;
  for (size_t at = 0; at < order.size();) {
    const int64_t id = group[order[at]];
    rows.clear();
    for (; at < order.size() && group[order[at]] == id; ++at)
      rows.push_back({score[order[at]], label[order[at]] > 0.5});
    const double auc = auc_of(rows);
    if (std::isnan(auc)) continue;
    sum += auc * static_cast<double>(rows.size());
    weight += static_cast<double>(rows.size());
  }
  return weight == 0 ? kUndefined : sum / weight;
}

std::vector<std::string> ranking_warnings(std::span<const RankingMetrics> validations) {
  constexpr size_t kPatience = 3;
  constexpr double kNear = 0.005;
  std::vector<std::string> warnings;
  if (validations.empty()) return warnings;
  const RankingMetrics& last = validations.back();
  if (last.positives == 0 || last.positives == last.rows) {
    warnings.push_back(
        fmt::format("all {} validation labels are {}: there is no AUC; look at rows.label and the "
                    "order of rows",
                    last.rows, last.positives == 0 ? "negative" : "positive"));
    return warnings;
  }
  const auto positives = static_cast<double>(last.positives),
             negatives = static_cast<double>(last.rows) - positives;
  // Standard deviation of Mann-Whitney's U under the null hypothesis, divided by the number of
  // pairs.
  const double deviation = std::sqrt((positives + negatives + 1) / (12 * positives * negatives));
  const double near = std::max(kNear, 3 * deviation);
  const auto recent = validations.last(std::min(kPatience, validations.size()));
  if (recent.size() == kPatience && std::all_of(recent.begin(), recent.end(), [&](const auto& m) {
        return std::abs(m.auc - 0.5) < near;
      }))
    warnings.push_back(
        fmt::format("the AUC is stuck at 0.5 ({:.4f} in the last of {} validations), like chance; "
                    "look at the features and the learning rate",
                    last.auc, kPatience));
  return warnings;
}

}  // namespace dovetail::train
