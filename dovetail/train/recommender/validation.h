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

namespace dovetail::train {

/// Rows with the logits that a recommender gave them, to measure how well it ranks them. Both
/// training and `dovetail eval` measure with this class.
class ScoredRows {
 public:
  /// Adds a batch of this rank's rows. logits (B, tasks) stay on their device, where the AUC is
  /// computed.
  void add(const at::Tensor& logits, const data::RowBatch& batch);
  /// Returns the logits of this rank's rows, (rows, tasks), in the order in which they were added.
  at::Tensor logits() const;
  /// Returns the labels of the same rows, (rows, tasks).
  at::Tensor labels() const;

  /// Returns loss and ranking metrics over the rows of all ranks. `rows` is the total over ranks.
  /// All ranks call this together, each with at least one row. The AUC is exact on one rank; on
  /// several ranks it comes from RankingSums. Only rank 0 gets the GAUC (grouped_auc).
  Validation measure(const RunConfig& config, int64_t rows,
                     const std::shared_ptr<comm::Group>& group) const;

 private:
  std::vector<at::Tensor> logits_, labels_, groups_;  ///< one tensor per batch
};

/// Returns the AUC as text: "AUC 0.7251", or "AUC 0.7251 +- 0.0003" if it has an error bound.
std::string describe_auc(const RankingMetrics& metrics);

/// Returns the number of rows to score in one forward pass. Rounding of matrix products may depend
/// on this number. So training and `dovetail eval` use the same. The model reads all these rows at
/// once, not in parts of recommender.grain rows. More than a few thousand rows would need more
/// memory than a training step.
inline int64_t scored_at_once(const RunConfig& config) {
  return std::min<int64_t>(config.train.batch, 4096);
}

}  // namespace dovetail::train
