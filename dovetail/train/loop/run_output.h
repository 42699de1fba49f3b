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

/// Files and progress bar that rank 0 writes while training. The files are metrics.jsonl,
/// timings.jsonl, quantization.jsonl, experts.jsonl, tables.jsonl, balance.jsonl, TensorBoard
/// events and traces. Their content is described in docs/training.md.
class RunOutput {
 public:
  /// Opens the files of `folder` for a run that continues after step `first_step` (0: a new run).
  /// Removes lines of later steps, which an earlier process wrote after its last checkpoint. Logs a
  /// warning if metrics.jsonl ends before `first_step`.
  RunOutput(const RunFolder& folder, const RunConfig& config, int64_t first_step,
            int64_t total_steps, bool quiet);

  void begin_step(int64_t step);  ///< starts to record a trace if log.trace_steps lists `step`
  void end_step(int64_t step);    ///< writes the recorded trace, if any, to trace-<step>.json
  /// Writes the step's line of metrics.jsonl. Call it before the step's checkpoint is saved.
  void write(const StepMetrics& metrics);
  /// Writes the step's line of timings.jsonl and its TensorBoard events, and updates the progress
  /// bar.
  void write(const StepMetrics& metrics, const StepTimings& timings);
  /// Writes a line of quantization.jsonl (from Quantization::statistics) and its TensorBoard
  /// events.
  void write_quantization(const nlohmann::ordered_json& statistics);
  /// Writes a line of experts.jsonl (from ExpertLoad::statistics) and its TensorBoard events.
  void write_experts(const nlohmann::ordered_json& statistics);
  /// Writes a line of tables.jsonl (from counters_json).
  void write_tables(const nlohmann::ordered_json& counters);
  /// Writes a line of balance.jsonl (from shares_line) and its TensorBoard events.
  void write_shares(const nlohmann::ordered_json& shares);
  /// Flushes the lines of metrics.jsonl to the disk. Call it before a checkpoint of the step gets
  /// its final name.
  void sync() { metrics_.sync(); }
  /// Logs a line above the progress bar.
  void say(const std::string& line);
  /// Logs a warning above the progress bar.
  void warn(const std::string& line);
  /// Removes the progress bar.
  void finish() { progress_.finish(); }

 private:
  bool traced(int64_t step) const;

  const RunFolder& folder_;
  LogSection log_;
  std::string unit_;
  int64_t first_step_;
  StepLog metrics_, timings_;
  /// Logs of the other .jsonl files. The constructor opens files that exist. Any other file is
  /// created when its first line is written.
  std::optional<StepLog> quantization_, experts_, tables_, balance_;
  std::optional<EventWriter> events_;
  Progress progress_;
  std::optional<double> validation_loss_;  ///< loss of the last validation, for the progress bar
  std::string auc_;  ///< AUC of the last validation, as text for the progress bar
};

}  // namespace dovetail::train
