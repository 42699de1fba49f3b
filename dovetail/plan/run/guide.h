#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/intercept.h"
#include "dovetail/plan/record/tracked_storages.h"
#include "dovetail/plan/run/planned_allocator.h"

namespace dovetail::plan {

/// Planned memory for the operations of a called step.
class StepMemory {
 public:
  virtual ~StepMemory() = default;
  /// Call before the first run of an operation. All actions before it in the plan are done, and its
  /// tensors are in place, when this returns.
  virtual void reach(int operation) = 0;
  virtual void leave(int operation) = 0;
  /// Address of a storage of the operation, between `reach` and `leave`. Null if the storage has no
  /// place.
  virtual std::byte* address_of(int storage) = 0;
  virtual std::vector<PlannedPlace> places_of(int operation) = 0;
};

/// Comparison of a called step with the recorded one.
struct CallChecks {
  /// Throw UserError for a number that differs from the recorded one. If false, an operation gets
  /// the number of this call.
  bool same_numbers = false;
  /// Throw UserError if an operation changes a tensor that it did not change in the recording.
  bool writes = false;
};

/// Calls the function of a recorded step again and runs its operations in planned memory.
/// Operations get the numbers that the function passes in this step. Throws UserError if it calls
/// another operator than the recorded step did, or uses another shape.
///
/// Tensors that the function holds at the end of a step keep their values. They get separate memory
/// before the next step.
class Guide : public OperationHandler {
 public:
  Guide(CapturedStep& step, StepMemory& memory) : step_(step), memory_(memory) {}
  ~Guide() override { release_held(); }

  void run(const std::function<void()>& work, const CallChecks& checks);
  /// Call after the plan's last action. Points the tensors that the caller still holds to the
  /// places where the plan has left them.
  void find_held();
  /// Moves tensors that are held since the previous step to separate memory.
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
  size_t next_ = 0;  // index into step_.calls
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> held_;
};

}  // namespace dovetail::plan
