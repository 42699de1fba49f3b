#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "dovetail/train/metrics/validation.h"

namespace dovetail {

/// What a step did, in numbers that depend on config, data and number of ranks alone: a line of
/// metrics.jsonl.
struct StepMetrics {
  int64_t step = 0;  ///< steps done, counted from 1
  double loss = 0;   ///< nats per token, or per sample of a recommender, over the global batch
  std::optional<double>
      router_loss;  ///< what the routers' losses add to it, with their coefficients
  std::optional<double>
      auxiliary_loss;  ///< what a recommender's auxiliary loss adds to it, weighted, per sample
  double lr = 0;
  double grad_norm = 0;  ///< of the mean gradient, before clipping
  int64_t tokens = 0;    ///< or samples, trained on so far, all ranks
  bool samples = false;  ///< a recommender's: `tokens` counts samples
  bool skipped = false;  ///< loss or gradient was not finite: no update
  std::optional<Validation> validation;
};

/// What a step took on this machine: a line of timings.jsonl. Milliseconds; rank 0's.
struct StepTimings {
  int64_t step = 0;
  double time_s = 0;            ///< since this process began training
  double step_ms = 0;           ///< without evaluation and saving
  double data_ms = 0;           ///< waiting for the loader
  double compute_ms = 0;        ///< of micro-batches, see TrainStep::compute_s; not written where 0
  double communication_ms = 0;  ///< waiting for the network
  double evaluation_ms = 0, checkpoint_ms = 0;  ///< written where not 0
  double tokens_per_s = 0;                      ///< or samples, all ranks
  bool samples = false;                         ///< as StepMetrics'
  double utilization = 0;  ///< model FLOP/s over the measured peak, 0 to 1; written where not 0
  std::optional<double>
      hit_rate;               ///< accesses of rows that were in embedding.memory_bytes, on rank 0
  uint64_t memory_bytes = 0;  ///< resident; on a GPU those given out by its allocator
};

/// Keys as in docs/training.md; numbers that are not finite become null. Reading a line back gives
/// the same bits.
nlohmann::ordered_json to_json(const StepMetrics& metrics);
nlohmann::ordered_json to_json(const StepTimings& timings);
/// samples, log_loss, auc, auc_error where it is not 0, normalized_entropy, calibration, gauc where
/// there are groups.
nlohmann::ordered_json to_json(const TaskRanking& task);
StepMetrics step_metrics_from_json(const nlohmann::json& line);

/// A file of one JSON object a line, each with a rising integer "step".
class StepLog {
 public:
  /// Opens `path` for appending, cut back to its leading whole lines with step <= last_step: what a
  /// killed process wrote after its last checkpoint, and a line it left torn, goes. Throws
  /// UserError when the file cannot be written.
  StepLog(std::filesystem::path path, int64_t last_step);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  /// The step of the last line kept at opening, 0 for none.
  int64_t last_kept() const { return last_kept_; }

  /// Appends the line in one write, so that a killed process leaves it whole or not at all.
  void append(const nlohmann::ordered_json& line);
  /// To the disk: before a checkpoint that relies on these lines gets its final name.
  void sync();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t last_kept_ = 0;
};

}  // namespace dovetail
