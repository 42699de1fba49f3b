#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/row_batch.h"
#include "dovetail/embedding/table.h"
#include "dovetail/models/recommender.h"
#include "dovetail/train/load_model.h"
#include "dovetail/train/recommender_lookups.h"

namespace dovetail {

/// A recommender out of a checkpoint or an export, ready to score rows: its tables whole, in memory and without their
/// optimizer's state, on the CPU.
class TrainedRecommender {
 public:
  /// Takes the tensors. Throws UserError when they, or the statistics of dense columns, are not those of the config.
  explicit TrainedRecommender(StoredRun stored);

  const RunConfig& config() const { return config_; }
  int64_t step() const { return step_; }
  /// What rows are scaled by before they are scored.
  const std::vector<DenseScale>& scales() const { return scales_; }
  /// (B, tasks), float32: the log-odds of a batch whose dense columns were scaled so.
  at::Tensor logits(const RowBatch& batch) const;
  /// "model.<parameter>" and "embedding.<table>.weight" (rows, dim), views.
  std::map<std::string, at::Tensor> tensors() const;

 private:
  RunConfig config_;
  int64_t step_;
  std::vector<DenseScale> scales_;
  std::shared_ptr<Recommender> model_;
  RecommenderLookups lookups_;
  embedding::PackedTables tables_;
};

/// Writes model.safetensors and recommender.json (docs/recommenders.md) into `folder`, which `dovetail eval` and
/// dovetail.recommender.load of the Python package read.
void export_recommender(const TrainedRecommender& recommender, const std::filesystem::path& folder);

bool is_exported_recommender(const std::filesystem::path& folder);
/// What a checkpoint would hold, but no optimizer. Throws UserError for files that were changed or are newer.
Snapshot read_exported_recommender(const std::filesystem::path& folder);

}  // namespace dovetail
