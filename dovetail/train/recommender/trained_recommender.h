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
#include "dovetail/train/embedding_tables/lookups.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail::train {

/// Recommender from a checkpoint or an export, ready to score rows on the CPU. Its tables are
/// complete, in memory, without optimizer state. A hashed table is a table without a fixed
/// vocabulary: it has a row for each key that it has seen and kept.
class TrainedRecommender {
 public:
  /// Takes over the tensors of `stored`. The dense part computes in `precision`, "fp32" or "bf16".
  /// Throws UserError if the tensors or the scales of dense columns do not match the config.
  explicit TrainedRecommender(StoredRun stored, const std::string& precision = "fp32");

  const RunConfig& config() const { return config_; }
  /// Returns the precision in which the run trained: "fp32" or "bf16".
  const std::string& trained_in() const { return trained_in_; }
  /// Returns the step of the checkpoint.
  int64_t step() const { return step_; }
  /// Returns the scales (mean and deviation) by which the loader of rows must transform dense
  /// columns before `logits`.
  const std::vector<data::DenseScale>& scales() const { return scales_; }
  /// Returns the log-odds of each label for a batch, (B, tasks) float32. Dense columns of the batch
  /// are already transformed by `scales`.
  at::Tensor logits(const data::RowBatch& batch) const;
  /// Returns views of all tensors: "model.<parameter>" and "embedding.<table>.weight" (rows, dim).
  /// A hashed table also has its keys, "embedding.<table>.keys" (rows). Parameters of Linears have
  /// the dtype in which they compute.
  std::map<std::string, at::Tensor> tensors() const;

 private:
  /// Replaces the keys of hashed tables by row numbers of `tables_`.
  embedding::Jagged rows_of(embedding::Jagged ids) const;

  RunConfig config_;
  std::string trained_in_;
  int64_t step_;
  std::vector<data::DenseScale> scales_;
  std::shared_ptr<models::Recommender> model_;
  RecommenderLookups lookups_;
  /// Tables with float32 rows. A hashed table has a row of zeros for unknown keys, then the rows of
  /// `keys_`.
  embedding::PackedTables tables_;
  /// Keys of each hashed table, (rows) int64, ascending as unsigned numbers. Undefined for a table
  /// with a fixed vocabulary.
  std::vector<at::Tensor> keys_;
};

/// Chooses the precision for --precision. If `asked` is empty, it is the precision in which the run
/// trained. Throws UserError unless `asked` is "float32", "fp32" or "bf16".
std::string choose_recommender_precision(const StoredRun& stored, const std::string& asked);

/// Exports a recommender that computes in "fp32": writes model.safetensors and recommender.json
/// (docs/recommenders.md) into `folder`. `dovetail eval` and dovetail.recommender.load of the
/// Python package read them.
void export_recommender(const TrainedRecommender& recommender, const std::filesystem::path& folder);

/// Returns true if `folder` has a recommender.json.
bool is_exported_recommender(const std::filesystem::path& folder);
/// Returns the content of an export as a checkpoint without optimizer state. Throws UserError if
/// files were changed or are of another format version.
io::Snapshot read_exported_recommender(const std::filesystem::path& folder);

}  // namespace dovetail::train
