#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "dovetail/data/loader.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/expert_load.h"
#include "dovetail/train/expert_parallel.h"
#include "dovetail/train/expert_plans.h"
#include "dovetail/train/optimizer.h"
#include "dovetail/train/quantization.h"
#include "dovetail/train/resolve.h"
#include "dovetail/train/resume.h"
#include "dovetail/train/router_bias.h"
#include "dovetail/train/run_folder.h"
#include "dovetail/train/run_output.h"
#include "dovetail/train/step.h"

namespace dovetail {

/// A run with its model, optimizer and data in memory: the loop over steps with evaluation and saving.
class Training {
 public:
  /// `tensors` (rank 0's; may be empty: a new run) are restored. `folder` is null on other ranks than 0.
  Training(const ResolvedRun& run, std::shared_ptr<Group> group, RunFolder* folder, bool quiet, RunState state,
           const std::map<std::string, at::Tensor>& tensors);

  /// Trains until the last step, a signal or the time limit, and saves. Throws std::runtime_error after
  /// train.max_skipped_steps steps in a row that were not finite.
  void run();

  bool complete() const { return state_.step >= run_.config.train.steps; }
  const RunState& state() const { return state_; }
  GPT& model() { return *model_; }
  const TokenStore& store() const { return loader_->first_store(); }
  std::string data_summary() const { return loader_->summary(); }

 private:
  /// One step with everything that is due after it; true if a rank wants to stop.
  bool advance();
  bool train_step(StepTimings& timings);
  void evaluate_if_due(StepTimings& timings);
  bool quantization_report_due(int64_t step) const;
  /// Records and warns of what quantization did in the step.
  void report_quantization();
  /// Records how the step's tokens spread over the experts.
  void report_expert_load();
  /// Warns of a skipped step; throws when there were too many in a row.
  void check_skipped();
  void save_if_due(bool stopping, StepTimings& timings);
  bool time_is_up() const;

  const ResolvedRun& run_;
  std::shared_ptr<Group> group_;
  RunState state_;
  ExpertParallel parallel_;
  std::shared_ptr<GPT> model_;
  std::optional<Quantization> quantization_;
  std::optional<ExpertLoad> expert_load_;
  std::optional<RouterBias> router_bias_;
  std::optional<ExpertPlans> plans_;
  std::optional<Optimizer> optimizer_;
  std::optional<TrainStep> step_;
  std::optional<Loader> loader_;
  std::optional<RunOutput> output_;              ///< rank 0
  std::optional<CheckpointFolder> checkpoints_;  ///< rank 0
  int64_t saved_step_ = -1;
  double begin_s_ = 0;
};

}  // namespace dovetail
