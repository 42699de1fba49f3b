#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dovetail/io/checkpoint.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/loop/run_output.h"
#include "dovetail/train/loop/step_outcome.h"
#include "dovetail/train/memory/planned_step.h"
#include "dovetail/train/ranks/batch_shares.h"
#include "dovetail/train/resolve/resolved_run.h"
#include "dovetail/train/run/folder.h"

namespace dovetail::train {

/// Loop over training steps, independent of the kind of model. It handles signals, the time limit,
/// logs, non-finite steps, evaluation and checkpoints.
class TrainingLoop {
 public:
  virtual ~TrainingLoop() = default;
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  /// Trains until the last step, a signal or the time limit, then saves. All ranks call it
  /// together. Throws std::runtime_error after train.max_skipped_steps non-finite steps in a row.
  void run();

  bool complete() const { return state_.step >= total_steps_; }
  int64_t total_steps() const { return total_steps_; }
  const RunState& state() const { return state_; }
  /// Returns lines for the log: the data that is read, and how often during the run.
  virtual std::string data_summary() const = 0;
  /// Call after the last step, on rank 0. Writes the run's results that are not logs.
  virtual void finish(const RunFolder& folder, bool quiet) = 0;

 protected:
  TrainingLoop(const ResolvedRun& run, std::shared_ptr<comm::Group> group, RunState state);
  /// Sets the length of the run, in construction, if it depends on the data (one pass).
  void set_total_steps(int64_t steps) { total_steps_ = steps; }
  /// Opens the logs and checkpoints of `folder`. Call at the end of construction, on rank 0.
  void open_output(RunFolder& folder, bool quiet);

  /// Runs step `number`. Stores in `timings` the time that data and communication took.
  virtual StepOutcome train_step(int64_t number, double lr, bool want_stop,
                                 StepTimings& timings) = 0;
  /// Writes the step's records other than its metrics.
  virtual void report_step() = 0;
  virtual std::optional<Validation> evaluate() = 0;
  /// Measures the validation loss on rows just before step `number` first trains on them. Returns
  /// nullopt if the step has no such rows.
  virtual std::optional<Validation> evaluate_before(int64_t /*number*/) { return std::nullopt; }
  /// Number of weight updates so far.
  virtual int64_t updates() const = 0;
  /// Tensors of a checkpoint, on rank 0.
  virtual std::map<std::string, at::Tensor> checkpoint_tensors() = 0;
  /// Writes the checkpoint's tensors that are too large to copy, before the others. `to` is null
  /// except on rank 0. All ranks call it together.
  virtual void stream_tensors(io::CheckpointKind /*kind*/, io::StreamedTensors* /*to*/) {}
  virtual nlohmann::json checkpoint_state() const = 0;

  /// balance.mode = "auto": reports this rank's compute time, forward and backward passes only.
  /// Shares may move from step `next` on. `planned` is the memory plan, or null; with one, only
  /// steps that ran by the plan count. All ranks call it together.
  void balance(int64_t micro_batches, double compute_s, const PlannedStep* planned, int64_t next);

  const RunConfig& config() const { return run_.config; }
  bool resumed() const { return state_.step > 0 || !state_.resumed_from.empty(); }
  RunOutput* output() { return output_ ? &*output_ : nullptr; }  ///< null except on rank 0

  const ResolvedRun& run_;
  std::shared_ptr<comm::Group> group_;
  RunState state_;
  BatchShares shares_;

 private:
  /// Runs one step and everything due after it. Returns true if a rank wants to stop.
  bool advance();
  bool take_step(StepTimings& timings);
  void evaluate_if_due(StepTimings& timings);
  void record(std::optional<Validation> found);
  /// Warns of a skipped step. Throws if too many were skipped in a row.
  void check_skipped();
  /// Logs the shares if they moved after this step or if this is the process's first step.
  void report_shares();
  void save_if_due(bool stopping, StepTimings& timings);
  bool time_is_up() const;

  std::optional<RunOutput> output_;                  ///< only on rank 0
  std::optional<io::CheckpointFolder> checkpoints_;  ///< only on rank 0
  /// Move of shares after the last step, and the first step with the new shares.
  std::optional<std::pair<int64_t, BatchShares::Move>> moved_;
  bool said_shares_ = false;
  int64_t total_steps_, saved_step_ = -1, saves_ = 0;
  double begin_s_ = 0;
};

}  // namespace dovetail::train
