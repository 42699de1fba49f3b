#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/data/rows/row_batch.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/metrics/validation.h"

namespace dovetail {

/// Rows that a recommender has scored: how well it ranks them. Training and `dovetail eval` measure
/// with it alike.
class ScoredRows {
 public:
  /// logits (B, tasks) of this rank's rows of a batch.
  void add(const at::Tensor& logits, const RowBatch& batch);
  /// (rows, tasks): this rank's, in the order in which they came.
  at::Tensor logits() const;
  at::Tensor labels() const;

  /// All ranks together, each with a row at least; `rows` are those of all. The AUC of one rank is
  /// exact, that of several by RankingSums; GAUC is on rank 0.
  Validation measure(const RunConfig& config, int64_t rows,
                     const std::shared_ptr<Group>& group) const;

 private:
  std::vector<at::Tensor> logits_, labels_, groups_;
};

/// "AUC 0.7251", with the bound of its error where it has one: "AUC 0.7251 +- 0.0003".
std::string describe_auc(const RankingMetrics& metrics);

/// The rows that are scored at a time: how a product of matrices rounds may depend on it, so that
/// it is the same wherever a checkpoint is measured. The dense part reads all of them at once, so
/// that more than a few thousand would need more memory than a training step in grains.
inline int64_t scored_at_once(const RunConfig& config) {
  return std::min<int64_t>(config.train.batch, 4096);
}

}  // namespace dovetail
