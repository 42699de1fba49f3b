#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/online_recompute.h"

namespace dovetail::plan {

/// Tensors that exist before the step and that a plan may move, by purpose, with their names. Other
/// existing tensors that the step uses keep their addresses.
struct StepTensors {
  std::vector<std::pair<std::string, at::Tensor>> inputs, parameters, state;
};

/// Way in which later steps run.
/// - kReplayed: only the recorded operations run.
/// - kCalled: the step's function is called again, and an executor runs its operations as planned
///   (plan/run/guide.h). The function may read values of tensors (item). It may pass other numbers
///   to operators than in the recording.
/// - kNone: no plan follows. The step is recorded only to enforce its memory limit.
enum class LaterSteps { kReplayed, kCalled, kNone };

/// Runs one training step (forward, backward, update) and records the operators that it calls below
/// autograd. The step runs on the device of its parameters: the CPU or one GPU. A step on a GPU may
/// also use tensors on the CPU, which no plan moves.
///
/// `step` runs as it would without a recording. It returns tensors to read after the step (the
/// loss). `later` says how later steps will run. Throws UserError that names an operator if it
/// - reads a value of a tensor (item); only if `later` is kReplayed,
/// - returns a tensor whose size depends on values (nonzero, unique); not if `later` is kNone,
/// - resizes a tensor; not if `later` is kNone,
/// - reads memory that no operator has written: a kernel wrote it by pointer (base/operation.h).
///
/// Schemas do not declare all writes. Therefore each storage is hashed before and after each
/// operation that uses it (plan/device/fingerprint.h). Throws UserError if a storage changes
/// between two operations.
///
/// At the end of the step, gradients of `tensors.parameters` that it created are released, unless
/// `later` is kNone. If `later` is kCalled, other tensors that the caller still holds at the end
/// count as outputs (TensorKind::kOutput).
///
/// `limit` bounds the memory that the step holds during the recording, by recomputation where
/// possible (plan/record/online_recompute.h).
///
/// Operators are intercepted as plan/record/intercept.h describes. Tensors are identified by their
/// storage. A process runs one recording at a time.
CapturedStep record_step(const std::function<std::vector<at::Tensor>()>& step,
                         const StepTensors& tensors, LaterSteps later = LaterSteps::kReplayed,
                         std::optional<RecordingLimit> limit = {});

/// Compares two recordings of the same step. Throws UserError that names the first operator, shape
/// or number in which they differ. Only a step that is the same every time can be planned. If
/// `later` is kCalled, numbers may differ. Adds to `b` the writes (CapturedOperation::writes) and
/// outputs (TensorKind::kOutput) that only `a` has.
void check_steady(const CapturedStep& a, CapturedStep& b, LaterSteps later = LaterSteps::kReplayed);

/// Calls `record_step` twice and returns the second recording. Both must agree (check_steady). So
/// gradients, momentum and other state must already exist: run the step once or twice before.
CapturedStep capture(const std::function<std::vector<at::Tensor>()>& step,
                     const StepTensors& tensors, LaterSteps later = LaterSteps::kReplayed);

}  // namespace dovetail::plan
