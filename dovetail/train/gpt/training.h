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
#include "dovetail/train/ranks/expert_layout.h"
#include "dovetail/train/ranks/expert_load.h"
#include "dovetail/train/ranks/expert_parallel.h"
#include "dovetail/train/ranks/router_bias.h"

namespace dovetail::train {

/// Training of a GPT: the run's model, optimizer and data in memory.
class GptTraining : public TrainingLoop {
 public:
  /// Restores rank 0's `tensors`; empty: a new run. Ranks other than 0 pass null for `folder`.
  GptTraining(const ResolvedRun& run, std::shared_ptr<comm::Group> group, RunFolder* folder,
              bool quiet, RunState state, const std::map<std::string, at::Tensor>& tensors);

  std::string data_summary() const override { return loader_->summary(); }
  /// Continues log.sample_prompts and writes samples.json.
  void finish(const RunFolder& folder, bool quiet) override;

 private:
  const data::TokenStore& store() const { return loader_->first_store(); }
  StepOutcome train_step(int64_t number, double lr, bool want_stop, StepTimings& timings) override;
  void report_step() override;
  std::optional<Validation> evaluate() override;
  int64_t updates() const override { return optimizer_->updates(); }
  std::map<std::string, at::Tensor> checkpoint_tensors() override;
  nlohmann::json checkpoint_state() const override;

  void restore_from(const std::map<std::string, at::Tensor>& tensors);
  bool quantization_report_due(int64_t step) const;
  /// Logs once from which step on a CUDA graph runs, or why none does.
  void report_graph();
  /// Records quantization statistics of the step, and warns if they are bad.
  void report_quantization();
  /// Records how the step's tokens are distributed over the experts.
  void report_expert_load();

  ExpertParallel parallel_;
  std::shared_ptr<models::GPT> model_;
  std::optional<Quantization> quantization_;
  std::optional<ExpertLoad> expert_load_;
  std::optional<RouterBias> router_bias_;
  std::optional<LayoutChoice> plans_;
  std::optional<Optimizer> optimizer_;
  std::optional<TrainStep> step_;
  std::optional<data::Loader> loader_;
  MemoryPlanLog memory_plan_log_;
  bool told_graph_ = false;
};

}  // namespace dovetail::train
