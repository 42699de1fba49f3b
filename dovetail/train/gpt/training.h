#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "dovetail/data/text/loader.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/loop/loop.h"
#include "dovetail/train/memory/plan_log.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/ranks/expert_load.h"
#include "dovetail/train/ranks/expert_parallel.h"
#include "dovetail/train/ranks/layout_choice.h"
#include "dovetail/train/ranks/router_bias.h"

namespace dovetail {

/// A run with its GPT, optimizer and data in memory.
class Training : public TrainingLoop {
 public:
  /// `tensors` (rank 0's; may be empty: a new run) are restored. `folder` is null on other ranks
  /// than 0.
  Training(const ResolvedRun& run, std::shared_ptr<Group> group, RunFolder* folder, bool quiet,
           RunState state, const std::map<std::string, at::Tensor>& tensors);

  std::string data_summary() const override { return loader_->summary(); }
  /// Continues log.sample_prompts.
  void finish(const RunFolder& folder, bool quiet) override;

 private:
  const TokenStore& store() const { return loader_->first_store(); }
  StepOutcome train_step(int64_t number, double lr, bool want_stop, StepTimings& timings) override;
  void report_step() override;
  std::optional<Validation> evaluate() override;
  int64_t updates() const override { return optimizer_->updates(); }
  std::map<std::string, at::Tensor> checkpoint_tensors() override;
  nlohmann::json checkpoint_state() const override;

  void restore_from(const std::map<std::string, at::Tensor>& tensors);
  bool quantization_report_due(int64_t step) const;
  /// Says once from which step a CUDA graph runs, or why none does.
  void report_graph();
  /// Records and warns of what quantization did in the step.
  void report_quantization();
  /// Records how the step's tokens spread over the experts.
  void report_expert_load();

  ExpertParallel parallel_;
  std::shared_ptr<GPT> model_;
  std::optional<Quantization> quantization_;
  std::optional<ExpertLoad> expert_load_;
  std::optional<RouterBias> router_bias_;
  std::optional<ExpertPlans> plans_;
  std::optional<Optimizer> optimizer_;
  std::optional<TrainStep> step_;
  std::optional<Loader> loader_;
  MemoryPlanLog memory_plan_log_;
  bool told_graph_ = false;
};

}  // namespace dovetail
