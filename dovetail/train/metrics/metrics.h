#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/train/metrics/validation.h"

namespace dovetail::train {

/// Results of a step: a line of metrics.jsonl. They depend only on the config, the data and the
/// number of ranks.
struct StepMetrics {
  int64_t step = 0;  ///< steps done, counted from 1
  /// Training loss in nats per token, per sample, or per pixel of masks: mean over the batch of all
  /// ranks.
  double loss = 0;
  /// Sum of the losses of all routers of experts (moe/router.h), each times its coefficient: mean
  /// per token. Training minimizes `loss` plus this. It is nullopt without experts.
  std::optional<double> router_loss;
  /// Auxiliary loss of a recommender times recommender.auxiliary_weight: mean per sample. Training
  /// minimizes `loss` plus this. It is nullopt if the model has none.
  std::optional<double> auxiliary_loss;
  double lr = 0;         ///< learning rate of the step
  double grad_norm = 0;  ///< norm of the mean gradient, before clipping
  int64_t tokens = 0;    ///< tokens or samples that the run has trained on so far, all ranks
  bool samples = false;  ///< false for a GPT; true: `tokens` counts samples
  bool skipped = false;  ///< true if loss or gradient was not finite: weights were not updated
  std::optional<Validation> validation;  ///< only if a validation ran at this step
};

/// Work of one executor of run.device in a step.
struct ExecutorTimings {
  std::string name;           ///< as in jobs::executor_names
  int64_t micro_batches = 0;  ///< number of micro-batches that it computed
  double compute_ms = 0;      ///< forward and backward of its micro-batches
  double copy_ms = 0;         ///< copying the weights to it
  double add_ms = 0;          ///< adding its gradients to the owner's
  double tokens_per_s = 0;    ///< its tokens per second of compute_ms
};

/// Times of a step on this machine: a line of timings.jsonl. All are measured on rank 0.
struct StepTimings {
  int64_t step = 0;
  double time_s = 0;   ///< seconds since this process began training
  double step_ms = 0;  ///< time of the step without evaluation and saving
  double data_ms = 0;  ///< time in which the step waited for the data loader
  /// Time of forward and backward passes (TrainStep::compute_s). Not written if 0.
  double compute_ms = 0;
  double communication_ms = 0;  ///< time in which the step waited for the network
  /// `evaluation_ms`: time of validation. `checkpoint_ms`: time of saving a checkpoint. Each is
  /// written only if it is not 0.
  double evaluation_ms = 0, checkpoint_ms = 0;
  double tokens_per_s = 0;  ///< tokens or samples per second, sum of all ranks
  bool samples = false;     ///< false for a GPT; true: `tokens_per_s` counts samples
  /// Fraction of the measured peak FLOP/s of matrix products that the step reaches, 0 to 1. It
  /// counts the FLOPs that the model needs. Not written if 0.
  double utilization = 0;
  /// Fraction of accesses to table rows that found the row in memory, not on disk
  /// (embedding.memory_bytes), on rank 0.
  std::optional<double> hit_rate;
  /// Bytes of ids, rows and gradients of tables that rank 0 sent to the others. Not written if 0.
  int64_t table_bytes = 0;
  std::vector<ExecutorTimings> executors;  ///< executors that shared the step; empty: none did
  /// On a CPU: resident bytes of the process. On a GPU: bytes that the GPU's allocator gave out.
  uint64_t memory_bytes = 0;
};

/// Returns a line of metrics.jsonl or timings.jsonl; docs/training.md lists the keys. Non-finite
/// numbers become null. Reading a line back gives the same bits.
nlohmann::ordered_json to_json(const StepMetrics& metrics);
/// Returns the keys of a line of metrics.jsonl that describe a validation.
nlohmann::ordered_json to_json(const Validation& validation);
nlohmann::ordered_json to_json(const StepTimings& timings);
/// Returns the metrics of one task of a recommender. Keys: samples, log_loss, auc, auc_error if it
/// is not 0, normalized_entropy, calibration, and gauc if rows have groups.
nlohmann::ordered_json to_json(const TaskRanking& task);
/// Returns the metrics in a line of metrics.jsonl.
StepMetrics step_metrics_from_json(const nlohmann::json& line);

/// Log file with one JSON object per line. Each object has an integer "step", which rises from line
/// to line.
class StepLog {
 public:
  /// Opens `path` for appending. First cuts the file back to its leading complete lines with step
  /// <= last_step. This drops incomplete lines, and lines that a killed process wrote after its
  /// last checkpoint. Throws UserError if the file cannot be written.
  StepLog(std::filesystem::path path, int64_t last_step);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  /// Returns the step of the last line that was in the file after cutting; 0 if there is none.
  int64_t last_kept() const { return last_kept_; }

  /// Writes `line` at the end of the file in a single write. If the process is killed, the line is
  /// either complete or absent.
  void append(const nlohmann::ordered_json& line);
  /// Flushes the file to the disk. Call it before a checkpoint that relies on these lines gets its
  /// final name.
  void sync();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t last_kept_ = 0;
};

}  // namespace dovetail::train
