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
#include "dovetail/train/ranks/batch_shares.h"
#include "dovetail/train/resolve/resolved_run.h"
#include "dovetail/train/run/folder.h"

namespace dovetail {

/// The loop over steps, whatever is trained: signals and the time limit, logs, steps that were not
/// finite, evaluation, checkpoints.
class TrainingLoop {
 public:
  virtual ~TrainingLoop() = default;
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  /// Trains until the last step, a signal or the time limit, and saves. All ranks together. Throws
  /// std::runtime_error after train.max_skipped_steps steps in a row that were not finite.
  void run();

  bool complete() const { return state_.step >= total_steps_; }
  int64_t total_steps() const { return total_steps_; }
  const RunState& state() const { return state_; }
  /// A line or more for the log: what is read, and how often over the run.
  virtual std::string data_summary() const = 0;
  /// After the last step, on rank 0: what the run shows beside its logs.
  virtual void finish(const RunFolder& folder, bool quiet) = 0;

 protected:
  TrainingLoop(const ResolvedRun& run, std::shared_ptr<Group> group, RunState state);
  /// In construction, where the data says how long a pass is.
  void set_total_steps(int64_t steps) { total_steps_ = steps; }
  /// At the end of construction, on rank 0: `folder`.
  void open_output(RunFolder& folder, bool quiet);

  /// Step `number`; `timings` gets what data and communication took.
  virtual StepOutcome train_step(int64_t number, double lr, bool want_stop,
                                 StepTimings& timings) = 0;
  /// Records of the step beside its metrics.
  virtual void report_step() = 0;
  virtual std::optional<Validation> evaluate() = 0;
  /// What is measured before a step, of rows that it is the first to train on; mostly nothing.
  virtual std::optional<Validation> evaluate_before(int64_t /*number*/) { return std::nullopt; }
  /// Updates of the weights so far.
  virtual int64_t updates() const = 0;
  /// What a checkpoint holds, on rank 0.
  virtual std::map<std::string, at::Tensor> checkpoint_tensors() = 0;
  /// What of it is too large to be copied: written before the others, all ranks together; `to` is
  /// null but on rank 0.
  virtual void stream_tensors(CheckpointKind /*kind*/, StreamedTensors* /*to*/) {}
  virtual nlohmann::json checkpoint_state() const = 0;

  /// balance.mode = "auto": what this rank computed of a step, in its forward and backward passes
  /// alone; shares may move from step `next` on. With a memory plan (or null) only steps by it
  /// count. All ranks together.
  void balance(int64_t micro_batches, double compute_s, const PlannedStep* planned, int64_t next);

  const RunConfig& config() const { return run_.config; }
  bool resumed() const { return state_.step > 0 || !state_.resumed_from.empty(); }
  RunOutput* output() { return output_ ? &*output_ : nullptr; }  ///< null on other ranks than 0

  const ResolvedRun& run_;
  std::shared_ptr<Group> group_;
  RunState state_;
  BatchShares shares_;

 private:
  /// One step with everything that is due after it; true if a rank wants to stop.
  bool advance();
  bool take_step(StepTimings& timings);
  void evaluate_if_due(StepTimings& timings);
  void record(std::optional<Validation> found);
  /// Warns of a skipped step; throws when there were too many in a row.
  void check_skipped();
  /// Where shares moved after this step, or it is the first of the process.
  void report_shares();
  void save_if_due(bool stopping, StepTimings& timings);
  bool time_is_up() const;

  std::optional<RunOutput> output_;              ///< rank 0
  std::optional<CheckpointFolder> checkpoints_;  ///< rank 0
  std::optional<std::pair<int64_t, BatchShares::Move>>
      moved_;  ///< after the last step, from that step on
  bool said_shares_ = false;
  int64_t total_steps_, saved_step_ = -1, saves_ = 0;
  double begin_s_ = 0;
};

}  // namespace dovetail
