#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "dovetail/train/metrics/metrics.h"
#include "dovetail/train/run/folder.h"
#include "dovetail/train/run/progress.h"
#include "dovetail/train/run/tensorboard.h"

namespace dovetail::train {

/// Files and progress bar that rank 0 writes while training. Files are metrics.jsonl,
/// timings.jsonl, quantization.jsonl, experts.jsonl, tables.jsonl, balance.jsonl, events and
/// traces.
class RunOutput {
 public:
  /// Truncates the logs to `first_step` steps. Logs a warning if metrics.jsonl does not reach that
  /// far.
  RunOutput(const RunFolder& folder, const RunConfig& config, int64_t first_step,
            int64_t total_steps, bool quiet);

  void begin_step(int64_t step);  ///< starts a trace if log.trace_steps names the step
  void end_step(int64_t step);    ///< writes the step's trace, if any
  /// Writes the step's line of metrics.jsonl. Call it before the step's checkpoint is saved.
  void write(const StepMetrics& metrics);
  /// Writes the step's line of timings.jsonl and its events, and updates the progress bar.
  void write(const StepMetrics& metrics, const StepTimings& timings);
  /// Writes a line of quantization.jsonl (see Quantization::statistics), and its events.
  void write_quantization(const nlohmann::ordered_json& statistics);
  /// Writes a line of experts.jsonl (see ExpertLoad::statistics), and its events.
  void write_experts(const nlohmann::ordered_json& statistics);
  /// Writes a line of tables.jsonl (docs/training.md).
  void write_tables(const nlohmann::ordered_json& counters);
  /// Writes a line of balance.jsonl (see shares_line), and its events.
  void write_shares(const nlohmann::ordered_json& shares);
  /// Flushes the step's lines to the disk, before a checkpoint relies on them.
  void sync() { metrics_.sync(); }
  /// Logs a line above the progress bar.
  void say(const std::string& line);
  void warn(const std::string& line);
  void finish() { progress_.finish(); }

 private:
  bool traced(int64_t step) const;

  const RunFolder& folder_;
  LogSection log_;
  std::string unit_;
  int64_t first_step_;
  StepLog metrics_, timings_;
  std::optional<StepLog> quantization_, experts_, tables_, balance_;  ///< opened at the first line
  std::optional<EventWriter> events_;
  Progress progress_;
  std::optional<double> validation_loss_;
  std::string auc_;  ///< AUC of the last evaluation, as text
};

}  // namespace dovetail::train
