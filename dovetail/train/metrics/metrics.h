#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "dovetail/train/metrics/validation.h"

namespace dovetail::train {

/// Results of a step: a line of metrics.jsonl. They depend only on the config, the data and the
/// number of ranks.
struct StepMetrics {
  int64_t step = 0;  ///< steps done, counted from 1
  double loss = 0;   ///< nats per token, or per sample of a recommender, over the global batch
  /// Part of `loss` that the routers' losses add, with their coefficients.
  std::optional<double> router_loss;
  /// Part of `loss` that a recommender's auxiliary loss adds, weighted, per sample.
  std::optional<double> auxiliary_loss;
  double lr = 0;
  double grad_norm = 0;  ///< norm of the mean gradient, before clipping
  int64_t tokens = 0;    ///< tokens or samples trained on so far, all ranks
  bool samples = false;  ///< `tokens` counts samples (recommenders)
  bool skipped = false;  ///< loss or gradient was not finite: no update
  std::optional<Validation> validation;
};

/// Time of a step on this machine: a line of timings.jsonl. Milliseconds, measured on rank 0.
struct StepTimings {
  int64_t step = 0;
  double time_s = 0;            ///< seconds since this process began training
  double step_ms = 0;           ///< the step without evaluation and saving
  double data_ms = 0;           ///< time waiting for the data loader
  double compute_ms = 0;        ///< forward and backward (TrainStep::compute_s); not written if 0
  double communication_ms = 0;  ///< time waiting for the network
  double evaluation_ms = 0, checkpoint_ms = 0;  ///< not written if 0
  double tokens_per_s = 0;                      ///< tokens or samples per second, all ranks
  bool samples = false;                         ///< `tokens_per_s` counts samples
  double utilization = 0;  ///< model FLOP/s over the measured peak, 0 to 1; not written if 0
  /// Fraction of row accesses that hit embedding.memory_bytes, on rank 0.
  std::optional<double> hit_rate;
  uint64_t memory_bytes = 0;  ///< resident memory; on a GPU, bytes allocated from its allocator
};

/// Converts to a JSON line; docs/training.md lists the keys. Non-finite numbers become null.
/// Reading a line back gives the same bits.
nlohmann::ordered_json to_json(const StepMetrics& metrics);
nlohmann::ordered_json to_json(const StepTimings& timings);
/// Keys: samples, log_loss, auc, auc_error if it is not 0, normalized_entropy, calibration, and
/// gauc if there are groups.
nlohmann::ordered_json to_json(const TaskRanking& task);
StepMetrics step_metrics_from_json(const nlohmann::json& line);

/// Log file with one JSON object per line, each with a rising integer "step".
class StepLog {
 public:
  /// Opens `path` for appending. First cuts the file back to its leading complete lines with step
  /// <= last_step. This drops lines that a killed process wrote after its last checkpoint, and
  /// incomplete lines. Throws UserError if the file cannot be written.
  StepLog(std::filesystem::path path, int64_t last_step);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  /// Step of the last line that was kept on opening; 0 if there is none.
  int64_t last_kept() const { return last_kept_; }

  /// Appends the line in a single write. A killed process leaves the line either complete or
  /// absent.
  void append(const nlohmann::ordered_json& line);
  /// Flushes to the disk. Call it before a checkpoint that relies on these lines gets its final
  /// name.
  void sync();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t last_kept_ = 0;
};

}  // namespace dovetail::train
