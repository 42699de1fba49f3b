#include "dovetail/train/metrics/ranking_metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

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

at::Tensor vector_of(const at::Tensor& values, const char* name, c10::Device device = at::kCPU) {
  DOVETAIL_CHECK(values.dim() == 1 && values.is_floating_point(), "{} has {} dimensions of {}",
                 name, values.dim(), c10::toString(values.scalar_type()));
  return values.detach().to(device, at::kDouble).contiguous();
}

/// Numbers the runs of equal elements in a vector, from 0 on. `begins` is true at the first element
/// of each run but the first one.
at::Tensor run_numbers(const at::Tensor& begins) {
  return at::cat({begins.new_zeros({1}, at::kLong), begins.cumsum(0)});
}

/// Returns the sums of x over each of `count` runs, (count) int64.
at::Tensor sums_of_runs(const at::Tensor& x, const at::Tensor& run, int64_t count) {
  return at::zeros({count}, x.options()).scatter_add(0, run, x);
}

at::Tensor differs_from_previous(const at::Tensor& x) {
  return x.slice(0, 1).ne(x.slice(0, 0, -1));
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
  const c10::Device device = scores.device();
  const at::Tensor all_scores = vector_of(scores, "scores", device),
                   all_labels = vector_of(labels, "labels", device);
  DOVETAIL_CHECK(scores.numel() == labels.numel() && scores.sizes() == groups.sizes(),
                 "{} scores, {} labels, {} groups", scores.numel(), labels.numel(), groups.numel());
  const at::Tensor labeled = all_labels.isnan().logical_not();
  at::Tensor score = all_scores.masked_select(labeled),
             group = groups.to(device, at::kLong).masked_select(labeled),
             positive = all_labels.masked_select(labeled).gt(0.5).to(at::kLong);
  if (score.numel() == 0 || score.isnan().any().item<bool>()) return kUndefined;
  // Rows in the order of their groups, within a group in the order of their scores.
  at::Tensor order = std::get<1>(at::sort(score, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  order = order.index_select(
      0, std::get<1>(at::sort(group.index_select(0, order), true, 0, /*descending=*/false)));
  score = score.index_select(0, order);
  group = group.index_select(0, order);
  positive = positive.index_select(0, order);
  const at::Tensor new_group = differs_from_previous(group);
  const at::Tensor tie = run_numbers(new_group.logical_or(differs_from_previous(score)));
  const at::Tensor negative = 1 - positive, number = run_numbers(new_group);
  const int64_t ties = tie[-1].item<int64_t>() + 1, count = number[-1].item<int64_t>() + 1;
  const at::Tensor positives = sums_of_runs(positive, number, count),
                   negatives = sums_of_runs(negative, number, count);
  const at::Tensor tied = sums_of_runs(negative, tie, ties);
  // Negative rows of the group with a lower score than a row, and with the same score.
  const at::Tensor before = (tied.cumsum(0) - tied).index_select(0, tie) -
                            (negatives.cumsum(0) - negatives).index_select(0, number);
  const at::Tensor pairs =
      sums_of_runs(positive * (2 * before + tied.index_select(0, tie)), number, count);
  const at::Tensor found = at::stack({pairs, positives, negatives}).cpu();
  const auto of = found.accessor<int64_t, 2>();
  double sum = 0, weight = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double all = static_cast<double>(of[1][i]) * static_cast<double>(of[2][i]);
    if (all == 0) continue;
    const auto rows = static_cast<double>(of[1][i] + of[2][i]);
    sum += static_cast<double>(of[0][i]) / all / 2 * rows;
    weight += rows;
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
