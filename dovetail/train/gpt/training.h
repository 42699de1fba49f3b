#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "dovetail/data/text/loader.h"
#include "dovetail/jobs/executor_shares.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/gpt/step_sharing.h"
#include "dovetail/train/loop/graph_report.h"
#include "dovetail/train/loop/loop.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/ranks/executor_log.h"
#include "dovetail/train/ranks/expert_layout.h"
#include "dovetail/train/ranks/expert_load.h"
#include "dovetail/train/ranks/expert_parallel.h"
#include "dovetail/train/ranks/router_bias.h"

namespace dovetail::train {

/// Training of a GPT, with its model, optimizer and data in memory.
class GptTraining : public TrainingLoop {
 public:
  /// Makes the model, and restores `tensors`, the tensors of a checkpoint on rank 0. They are empty
  /// for a new run. `state` is the RunState of the checkpoint, or a new one. Ranks other than 0
  /// pass null for `folder`.
  GptTraining(const ResolvedRun& run, std::shared_ptr<comm::Group> group, RunFolder* folder,
              bool quiet, RunState state, const std::map<std::string, at::Tensor>& tensors);

  std::string data_summary() const override { return loader_->summary(); }
  /// Generates a continuation of each prompt in log.sample_prompts. Writes them to samples.json.
  void finish(const RunFolder& folder, bool quiet) override;

 private:
  /// Returns the tokenized text of the first source in [data]. It has the tokenizer and the
  /// validation split of the run.
  const data::TokenStore& store() const { return loader_->first_store(); }
  StepOutcome train_step(int64_t number, double lr, bool want_stop, StepTimings& timings) override;
  void report_step() override;
  plan::PlannedStep* memory_plan() override { return step_->memory_plan(); }
  std::optional<Validation> evaluate() override;
  int64_t updates() const override { return optimizer_->updates(); }
  std::map<std::string, at::Tensor> checkpoint_tensors() override;
  nlohmann::json checkpoint_state() const override;

  /// Makes the executors of run.device, if it lists some.
  void make_executors();
  /// Stores the executors' times of the last step in `timings`. If their shares move, changes and
  /// reports these from step `next` on.
  void share_anew(int64_t next, StepTimings& timings);
  /// Restores rank 0's tensors on all ranks.
  void restore_from(const std::map<std::string, at::Tensor>& tensors);
  /// Returns true if this rank measures quantization statistics in step `step`.
  bool quantization_report_due(int64_t step) const;
  /// Writes the step's line of quantization.jsonl if it is due, and warns of bad statistics.
  void report_quantization();
  /// Writes the step's line of experts.jsonl if it is due.
  void report_expert_load();

  ExpertParallel parallel_;
  std::shared_ptr<models::GPT> model_;
  std::optional<Quantization> quantization_;
  std::optional<ExpertLoad> expert_load_;
  std::optional<RouterBias> router_bias_;
  std::optional<LayoutChoice> plans_;  ///< layouts of layers whose experts are spread over ranks
  std::optional<Optimizer> optimizer_;
  std::optional<StepSharing> sharing_;                   ///< only if run.device lists executors
  std::optional<jobs::ExecutorShares> executor_shares_;  ///< only if their shares move
  std::optional<ExecutorLog> executor_log_;              ///< only if run.device lists executors
  std::optional<TrainStep> step_;
  std::optional<data::Loader> loader_;
  GraphReport graph_report_;
  bool told_executors_ = false;  ///< balance.jsonl has the first shares of this process
};

}  // namespace dovetail::train
