#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"
#include "dovetail/embedding/pack/table.h"
#include "dovetail/models/recommender.h"
#include "dovetail/train/run/stored_run.h"
#include "dovetail/train/tables/lookups.h"

namespace dovetail {

/// A recommender out of a checkpoint or an export, ready to score rows: its tables whole, in memory
/// and without their optimizer's state, on the CPU.
class TrainedRecommender {
 public:
  /// Takes the tensors. Throws UserError when they, or the statistics of dense columns, are not
  /// those of the config.
  explicit TrainedRecommender(StoredRun stored);

  const RunConfig& config() const { return config_; }
  int64_t step() const { return step_; }
  /// What rows are scaled by before they are scored.
  const std::vector<DenseScale>& scales() const { return scales_; }
  /// (B, tasks), float32: the log-odds of a batch whose dense columns were scaled so.
  at::Tensor logits(const RowBatch& batch) const;
  /// "model.<parameter>", "embedding.<table>.weight" (rows, dim) and, of a table without a fixed
  /// vocabulary, its keys, "embedding.<table>.keys" (rows); views.
  std::map<std::string, at::Tensor> tensors() const;

 private:
  /// Ids with rows of `tables_` in the place of keys.
  embedding::Jagged rows_of(embedding::Jagged ids) const;

  RunConfig config_;
  int64_t step_;
  std::vector<DenseScale> scales_;
  std::shared_ptr<Recommender> model_;
  RecommenderLookups lookups_;
  embedding::PackedTables
      tables_;  ///< without a fixed vocabulary the rows of `keys_`, behind one of zeros
  std::vector<at::Tensor>
      keys_;  ///< of each table (rows) int64, ascending by their bits; or undefined
};

/// Writes model.safetensors and recommender.json (docs/recommenders.md) into `folder`, which
/// `dovetail eval` and dovetail.recommender.load of the Python package read.
void export_recommender(const TrainedRecommender& recommender, const std::filesystem::path& folder);

bool is_exported_recommender(const std::filesystem::path& folder);
/// What a checkpoint would hold, but no optimizer. Throws UserError for files that were changed or
/// are newer.
Snapshot read_exported_recommender(const std::filesystem::path& folder);

}  // namespace dovetail
