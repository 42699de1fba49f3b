#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dovetail::train {

/// Quality of scores (logits) for one binary label. A metric that is undefined is NaN. The AUC and
/// the normalized entropy are undefined if all labels have the same class. All metrics are
/// undefined without rows, or if a logit is NaN.
struct RankingMetrics {
  int64_t rows = 0;       ///< rows that have a label
  int64_t positives = 0;  ///< rows with a label above 1/2
  double auc = 0;         ///< area under the ROC curve
  double auc_error = 0;   ///< maximum difference between the exact AUC and `auc`
  double log_loss = 0;    ///< cross-entropy of the predicted probabilities: mean over rows, in nats
  /// Log loss divided by the entropy of the mean label (He et al., ADKDD 2014, section 3).
  double normalized_entropy = 0;
  double calibration = 0;  ///< sum of predicted probabilities / sum of labels (same source)
};

/// Sums over scored rows from which RankingMetrics follow, in constant memory. To combine several
/// ranks or batches, add their `counts` and `sums` element by element.
///
/// The AUC comes from two histograms of the logit, one of negative and one of positive rows. Each
/// has kBins bins of width 2^-10 on [-32, 32). The first and the last bin also count logits below
/// and above this range. A pair of a positive and a negative row in the same bin counts one half.
/// So `auc` differs from the exact AUC by at most half the share of these pairs among all pairs.
/// `auc_error` is this bound.
class RankingSums {
 public:
  static constexpr int64_t kBins = int64_t{1} << 16;

  RankingSums();

  /// Adds rows. logits (N) and labels (N) are floating point, on any device; labels are from 0 to
  /// 1. Rows with a NaN label are ignored.
  void add(const at::Tensor& logits, const at::Tensor& labels);
  /// Returns the metrics of all rows added so far.
  RankingMetrics metrics() const;

  at::Tensor counts;  ///< (2, kBins) int64 on CPU: negative and positive rows in each bin
  at::Tensor sums;    ///< (3) float64 on CPU: sums of log loss, predicted probability and label
};

/// Returns the exact area under the ROC curve: the share of (positive, negative) pairs that the
/// scores order correctly. A row is positive if its label is above 1/2. Ties count one half
/// (Mann-Whitney U with midranks). scores (N) and labels (N) as in RankingSums::add. Computes on
/// the device of the scores.
double exact_auc(const at::Tensor& scores, const at::Tensor& labels);

/// Returns the GAUC: the mean over groups of rows of the group's AUC, weighted by its number of
/// rows. Source: Zhou et al., KDD 2018, section 5.3. A group is, for example, all rows of one user.
/// `groups` (N) int64 has the group of each row. Groups in which all labels have the same class do
/// not count. Returns NaN if no group counts. Computes on the device of the scores.
double grouped_auc(const at::Tensor& scores, const at::Tensor& labels, const at::Tensor& groups);

/// Returns warnings about the latest validation of a run. `validations` has all validations so far;
/// the latest one is last. There are two warnings:
///
/// - All labels of the latest validation have one class.
/// - The AUCs of the last three validations are all close to 0.5. Close means within 0.005, or
///   within three standard errors of random scores if that is more.
std::vector<std::string> ranking_warnings(std::span<const RankingMetrics> validations);

}  // namespace dovetail::train
