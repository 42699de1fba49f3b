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

/// Where the operations of a called step find and put their tensors.
class StepMemory {
 public:
  virtual ~StepMemory() = default;
  /// Before the first run of an operation: all that comes before it in the plan happens, and its
  /// tensors are there.
  virtual void reach(int operation) = 0;
  virtual void leave(int operation) = 0;
  /// Between `reach` and `leave`: where a storage of the operation lies; null for one that has no
  /// place.
  virtual std::byte* address_of(int storage) = 0;
  virtual std::vector<PlannedPlace> places_of(int operation) = 0;
};

/// How a called step is compared with the recorded one.
struct CallChecks {
  /// UserError for a number that is not the recorded one. Otherwise each number is the one of this
  /// call.
  bool same_numbers = false;
  /// UserError for an operation that changes a tensor which it did not change when it was recorded.
  bool writes = false;
};

/// Calls the function of a recorded step again and runs its operations in planned memory. Each
/// number then belongs to this step. UserError where it calls another operator than the recorded
/// step did, or one on another shape.
///
/// Tensors that the function holds at the end of each step keep their values: they get memory of
/// their own before the next step.
class Guide : public OperationHandler {
 public:
  Guide(CapturedStep& step, StepMemory& memory) : step_(step), memory_(memory) {}
  ~Guide() override { release_held(); }

  void run(const std::function<void()>& work, const CallChecks& checks);
  /// After the plan's last action: the tensors that the caller still holds are where the plan has
  /// left them.
  void find_held();
  /// Gives the tensors that are held from the last step memory of their own.
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
