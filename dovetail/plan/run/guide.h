#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "dovetail/plan/device/planned_allocator.h"
#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/intercept.h"
#include "dovetail/plan/record/tracked_storages.h"

/// Called steps: steps that call the function of a recorded step again. Its operators are
/// intercepted and run in the memory of a plan.
namespace dovetail::plan {

/// Memory that a plan gives to the operations of a called step. Operations and storages are indices
/// into CapturedStep.
class StepMemory {
 public:
  virtual ~StepMemory() = default;
  /// Runs the plan up to the first run of `operation`; call before this run. When it returns, all
  /// earlier actions are done and the tensors of the operation are in place.
  virtual void reach(int operation) = 0;
  /// Ends an operation. Call after it has run.
  virtual void leave(int operation) = 0;
  /// Returns the address of a storage of the operation, between `reach` and `leave`. Returns null
  /// if the plan has no place for the storage.
  virtual std::byte* address_of(int storage) = 0;
  /// Runs other operations in place of `operation` if the plan has another algorithm for it.
  /// Returns the tensors that they make for CapturedOperation::makes, or nullopt if the operation
  /// itself is to run. Call between `reach` and `leave`.
  virtual std::optional<std::vector<at::Tensor>> run_instead(int operation) = 0;
  /// Keeps a storage that the operation made on another device (CapturedStorage::elsewhere), for
  /// operations that run again.
  virtual void keep_elsewhere(int storage, c10::Storage made) = 0;
  /// Returns the places for the operation's allocations, in the order in which it allocates.
  virtual std::vector<PlannedPlace> places_of(int operation) = 0;
};

/// Checks of a called step against the recorded one. Each is off by default.
struct CallChecks {
  /// Throw UserError if a number passed to an operation differs from the recorded one. If false,
  /// the operation gets the number of this call.
  bool same_numbers = false;
  /// Throw UserError if an operation changes a tensor that it did not change in the recording.
  bool writes = false;
};

/// Calls the function of a recorded step again and runs its operations in planned memory.
/// Operations get the numbers that the function passes in this step. Throws UserError if the
/// function calls another operator than in the recorded step, or uses another shape.
///
/// Tensors that the function or its caller holds at the end of a step keep their values. They are
/// copied to separate memory before the next step.
class Guide : public OperationHandler {
 public:
  Guide(CapturedStep& step, StepMemory& memory) : step_(step), memory_(memory) {}
  ~Guide() override = default;

  /// Runs one step by calling `work`, the recorded function.
  void run(const std::function<void()>& work, const CallChecks& checks);
  /// Call after the plan's last action. The caller may still hold outputs of the step
  /// (TensorKind::kOutput). Copies these tensors from planned memory (StepMemory::address_of) to
  /// memory of their own. Throws UserError if the caller holds another tensor that the step
  /// created. Skips both if CallChecks::same_numbers is set.
  void find_held();
  /// Copies tensors of the previous step to separate memory if the function or its caller still
  /// holds them.
  void release_held();

  void handle(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
              torch::jit::Stack* stack) override;

 private:
  using Storages = std::vector<std::pair<int, c10::Storage>>;
  Storages take_arguments(CapturedOperation& operation, const torch::jit::Stack& stack);
  void hold_all();
  void take_results(const CapturedOperation& operation, const torch::jit::Stack& stack);
  void run_operation(CapturedOperation& operation, const Storages& found,
                     const std::function<void()>& call) const;

  const Interception interception_;
  CapturedStep& step_;
  StepMemory& memory_;
  CallChecks checks_;
  TrackedStorages storages_;
  size_t next_ = 0;  // index into step_.calls: the next expected call
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>
      // storages held since the previous step
      held_;
};

}  // namespace dovetail::plan
