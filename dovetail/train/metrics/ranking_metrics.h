#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dovetail {

/// How well the scores of a binary label do. NaN where a number does not exist: the AUC and the
/// normalised entropy of labels of one class, everything of no rows or of logits that are NaN.
struct RankingMetrics {
  int64_t rows = 0;       ///< that have a label
  int64_t positives = 0;  ///< with a label above 1/2
  double auc = 0;
  double auc_error = 0;  ///< the exact AUC is within this of `auc`
  double log_loss = 0;   ///< mean, nats
  double normalized_entropy =
      0;  ///< log_loss over the entropy of the mean label (He et al., ADKDD 2014, section 3)
  double calibration = 0;  ///< sum of predicted probabilities over sum of labels (ibidem)
};

/// Sums of predictions from which the metrics follow, in constant memory. Those of several ranks or
/// batches add up: sum `counts` and `sums` element by element.
///
/// The AUC comes from two histograms over the logit, of kBins bins 2^-10 wide on [-32, 32), the
/// outer ones open: pairs of a positive and a negative in one bin count one half, so that the exact
/// AUC differs by at most half the share of such pairs among all, which `auc_error` is.
class RankingSums {
 public:
  static constexpr int64_t kBins = int64_t{1} << 16;

  RankingSums();

  /// logits (N) and labels (N) from 0 to 1, floating point, any device; rows with a NaN label are
  /// left out.
  void add(const at::Tensor& logits, const at::Tensor& labels);
  RankingMetrics metrics() const;

  at::Tensor counts;  ///< (2, kBins) int64 on CPU: negatives, positives by bin
  at::Tensor sums;    ///< (3) float64 on CPU: of log loss, probability, label
};

/// The exact area under the ROC curve: the share of pairs of a positive (label above 1/2) and a
/// negative that the scores rank rightly, ties counted one half (Mann-Whitney U with midranks).
/// scores (N) and labels (N) as in RankingSums.
double exact_auc(const at::Tensor& scores, const at::Tensor& labels);

/// The mean of the AUC of each group, weighted by its rows; groups of one class are left out (Zhou
/// et al., KDD 2018, section 5.3). groups (N) int64. NaN if no group has both classes.
double grouped_auc(const at::Tensor& scores, const at::Tensor& labels, const at::Tensor& groups);

/// What is wrong with the validations of a run so far, the last one at the end: labels of one
/// class; an AUC that the last three leave within 0.005, or three standard errors of random scores,
/// of 0.5.
std::vector<std::string> ranking_warnings(std::span<const RankingMetrics> validations);

}  // namespace dovetail
