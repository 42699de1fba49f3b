#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "dovetail/train/metrics/metrics.h"
#include "dovetail/train/run/folder.h"
#include "dovetail/train/run/progress.h"
#include "dovetail/train/run/tensorboard.h"

namespace dovetail {

/// What rank 0 writes and shows while training: metrics.jsonl, timings.jsonl, quantization.jsonl,
/// experts.jsonl, tables.jsonl, balance.jsonl, events, traces, the progress bar.
class RunOutput {
 public:
  /// Cuts the logs back to `first_step` steps and says so if metrics.jsonl does not reach that far.
  RunOutput(const RunFolder& folder, const RunConfig& config, int64_t first_step,
            int64_t total_steps, bool quiet);

  void begin_step(int64_t step);  ///< starts a trace if log.trace_steps names it
  void end_step(int64_t step);    ///< writes it
  /// The step's line of metrics.jsonl, before its checkpoint.
  void write(const StepMetrics& metrics);
  /// The step's line of timings.jsonl, its events and the progress bar.
  void write(const StepMetrics& metrics, const StepTimings& timings);
  /// A line of quantization.jsonl (see Quantization::statistics), and its events.
  void write_quantization(const nlohmann::ordered_json& statistics);
  /// A line of experts.jsonl (see ExpertLoad::statistics), and its events.
  void write_experts(const nlohmann::ordered_json& statistics);
  /// A line of tables.jsonl (docs/training.md).
  void write_tables(const nlohmann::ordered_json& counters);
  /// A line of balance.jsonl (see shares_line), and its events.
  void write_shares(const nlohmann::ordered_json& shares);
  /// The step's lines to the disk, before a checkpoint builds on them.
  void sync() { metrics_.sync(); }
  /// A line for the reader, above the progress bar.
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
  std::optional<StepLog> quantization_, experts_, tables_, balance_;  ///< from the first line on
  std::optional<EventWriter> events_;
  Progress progress_;
  std::optional<double> validation_loss_;
  std::string auc_;  ///< of the last evaluation
};

}  // namespace dovetail
