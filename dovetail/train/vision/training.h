#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "dovetail/base/operation.h"
#include "dovetail/data/images/image_loader.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/models/vision.h"
#include "dovetail/train/loop/loop.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/vision/step.h"

namespace dovetail::train {

/// Training of a vision model, with its model, optimizer and images in memory.
///
/// Each rank has running statistics of batch norms from its own samples. Before each evaluation and
/// checkpoint, all ranks take the statistics of rank 0, as torch's DistributedDataParallel does.
class VisionTraining : public TrainingLoop {
 public:
  /// Makes the model, and restores `checkpoint`, which is null for a new run. `state` is the
  /// RunState of the checkpoint, or a new one. Ranks other than 0 pass null for `checkpoint` and
  /// `folder`.
  VisionTraining(const ResolvedRun& run, std::shared_ptr<comm::Group> group, RunFolder* folder,
                 bool quiet, RunState state, const io::StoredCheckpoint* checkpoint);

  std::string data_summary() const override { return loader_->summary(); }
  void finish(const RunFolder& folder, bool quiet) override;

 private:
  StepOutcome train_step(int64_t number, double lr, bool want_stop, StepTimings& timings) override;
  plan::PlannedStep* memory_plan() override { return step_->memory_plan(); }
  std::optional<Validation> evaluate() override;
  int64_t updates() const override { return optimizer_->updates(); }
  std::map<std::string, at::Tensor> checkpoint_tensors() override;
  nlohmann::json checkpoint_state() const override;

  /// Restores the tensors of rank 0's checkpoint on all ranks.
  void restore_from(const io::StoredCheckpoint* checkpoint);
  /// Copies the buffers of rank 0 to all ranks.
  void share_buffers();

  std::shared_ptr<models::VisionModel> model_;
  std::optional<Optimizer> optimizer_;
  std::optional<VisionStep> step_;
  std::optional<data::ImageLoader> loader_;
  std::optional<HeldMemory> batches_;  ///< the loader's batches, which count towards memory.budget
};

}  // namespace dovetail::train
