#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/io/checkpoint.h"
#include "dovetail/io/tensor_owners.h"
#include "dovetail/plan/step/planned_step.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/loop/run_output.h"
#include "dovetail/train/loop/step_outcome.h"
#include "dovetail/train/memory/plan_log.h"
#include "dovetail/train/ranks/batch_shares.h"
#include "dovetail/train/resolve/resolved_run.h"
#include "dovetail/train/run/folder.h"

namespace dovetail::train {

/// Loop over the training steps of one run. It handles signals, the time limit, logs, non-finite
/// steps, evaluation and checkpoints. Subclasses train one kind of model (GptTraining,
/// RecommenderTraining, VisionTraining).
class TrainingLoop {
 public:
  virtual ~TrainingLoop() = default;
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  /// Trains until the last step, a signal or the time limit, then saves. All ranks call it
  /// together. Throws std::runtime_error after train.max_skipped_steps non-finite steps in a row.
  void run();

  /// Returns true if all steps of the run are done.
  bool complete() const { return state_.step >= total_steps_; }
  /// Returns the length of the run, in optimizer steps.
  int64_t total_steps() const { return total_steps_; }
  const RunState& state() const { return state_; }
  /// Returns lines for the log that describe the training data and how often the run reads it.
  virtual std::string data_summary() const = 0;
  /// Writes results such as samples.json, and logs a summary unless `quiet`. Call on rank 0 after
  /// the last step of the run.
  virtual void finish(const RunFolder& folder, bool quiet) = 0;

 protected:
  /// Begins a run, or resumes it if `state` comes from a checkpoint. `run` must outlive this
  /// object.
  TrainingLoop(const ResolvedRun& run, std::shared_ptr<comm::Group> group, RunState state);
  /// Sets the length of the run if it depends on the data (TrainSection::kPass). Call in the
  /// constructor of the subclass.
  void set_total_steps(int64_t steps) { total_steps_ = steps; }
  /// Opens the checkpoints of the run, and on rank 0 its logs. `folder` is null on other ranks. All
  /// ranks call it together, at the end of the subclass's constructor.
  void open_output(RunFolder* folder, bool quiet);

  /// Runs step `number`, counted from 1, with learning rate `lr`. `want_stop`: this rank wants to
  /// stop. Stores in `timings` the time that data, computation and communication took.
  virtual StepOutcome train_step(int64_t number, double lr, bool want_stop,
                                 StepTimings& timings) = 0;
  /// Writes the last step's lines of log files that only this kind of run has. All ranks call it
  /// together, after each step.
  virtual void report_step() {}
  /// Returns the planned step of a run with memory.budget, else null.
  virtual plan::PlannedStep* memory_plan() = 0;
  /// Measures the loss on the validation split. Returns nullopt if there is none.
  virtual std::optional<Validation> evaluate() = 0;
  /// Called before each step. If step `number` is the first that trains on a new day, measures the
  /// loss on the rows of this day. Otherwise, and if rows have no days, returns nullopt.
  virtual std::optional<Validation> evaluate_before(int64_t /*number*/) { return std::nullopt; }
  /// Returns the number of weight updates so far; skipped steps do not count.
  virtual int64_t updates() const = 0;
  /// Returns the tensors of a checkpoint that this rank writes, except the tensors that
  /// stream_tensors writes. All ranks call it together.
  virtual std::map<std::string, at::Tensor> checkpoint_tensors() = 0;
  /// Writes tensors that are too large to copy (embedding tables) to the checkpoint `to`, before
  /// the other tensors. `to` is null on ranks that write none. All ranks call it together.
  virtual void stream_tensors(io::CheckpointKind /*kind*/, io::StreamedTensors* /*to*/) {}
  /// Returns the state of a checkpoint (resume.h).
  virtual nlohmann::json checkpoint_state() const = 0;

  /// If balance.mode = "auto", passes the time of a step to BatchShares::add, which may change the
  /// shares. Changed shares apply from step `next` on. `compute_s`: seconds that forward and
  /// backward passes of `micro_batches` micro-batches took on this rank. With a memory plan, steps
  /// before the final plan do not count. All ranks call it together.
  void balance(int64_t micro_batches, double compute_s, int64_t next);

  /// Returns the ranks that write `tensors`, all tensors of a checkpoint.
  io::TensorOwners owners_of(std::vector<io::CheckpointTensor> tensors) const;
  /// Returns the part of `tensors` that this rank writes. Each rank holds all tensors.
  std::map<std::string, at::Tensor> own_part(
      const std::map<std::string, at::Tensor>& tensors) const;

  const RunConfig& config() const { return run_.config; }
  /// Returns the options of the run's memory plan. `paged`: from paged_until_there_is_a_plan.
  plan::PlannedStep::Options memory_options(std::shared_ptr<plan::PagedAllocations> paged) const;
  /// Returns true if the run began from a checkpoint.
  bool resumed() const { return state_.step > 0 || !state_.resumed_from.empty(); }
  /// Returns the logs and the progress bar on rank 0, and null on other ranks.
  RunOutput* output() { return output_ ? &*output_ : nullptr; }

  const ResolvedRun& run_;
  std::shared_ptr<comm::Group> group_;
  RunState state_;
  BatchShares shares_;  ///< samples of each rank

 private:
  /// Runs one step, then evaluates and saves if they are due. Returns true if a rank wants to stop.
  bool advance();
  /// Runs one step and updates `state_`. Returns true if a rank wants to stop.
  bool take_step(StepTimings& timings);
  void evaluate_if_due(StepTimings& timings);
  /// Adds a validation, if there is one, to the metrics of the last step.
  void record(std::optional<Validation> found);
  /// Warns if the last step was skipped. Throws std::runtime_error after train.max_skipped_steps
  /// skipped steps in a row.
  void check_skipped();
  /// Writes the current `shares_` to balance.jsonl after the first step of this process, and after
  /// each step that changed them.
  void report_shares();
  void save_if_due(bool stopping, StepTimings& timings);
  bool time_is_up() const;

  MemoryPlanLog memory_plan_log_;
  std::optional<RunOutput> output_;                  ///< only on rank 0
  std::optional<io::CheckpointFolder> checkpoints_;  ///< only if the run saves
  /// If the last step changed `shares_`: the first step with the new shares, and the change.
  /// Otherwise nullopt.
  std::optional<std::pair<int64_t, BatchShares::Move>> moved_;
  bool said_shares_ = false;
  /// `total_steps_`: length of the run. `saved_step_`: step at which this process last saved a
  /// checkpoint, or -1. `saves_`: number of checkpoints that this process has saved.
  int64_t total_steps_, saved_step_ = -1, saves_ = 0;
  double begin_s_ = 0;  ///< time of construction, for the time limit
};

}  // namespace dovetail::train
