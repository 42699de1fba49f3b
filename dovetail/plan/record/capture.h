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

/// The tensors that a step finds and what they are for. Tensors that it finds beside these stay
/// where they are.
struct StepTensors {
  std::vector<std::pair<std::string, at::Tensor>> inputs, parameters, state;
};

/// How the steps after the recorded ones run: by the recorded operations alone, or by calling the
/// function again, whose operations an executor runs as planned (plan/run/guide.h). The latter may
/// read values (item) and give other numbers. kNone: the recording is there for its memory limit
/// alone.
enum class LaterSteps { kReplayed, kCalled, kNone };

/// Record one training step (forward, backward, update) on the CPU as the operators that it calls
/// below autograd.
///
/// `step` runs as it would without being recorded, and returns what is to be read after a step (the
/// loss). UserError names an operator that
/// - reads a value to go on (item), unless later steps call the function,
/// - gives a tensor whose size depends on values (nonzero, unique), or changes the size of a
/// tensor,
/// - reads memory that no operator has written: a kernel on pointers did (base/operation.h).
///
/// Writes are found by a fingerprint of each storage before and after each operation: a schema does
/// not name all. UserError where a storage changes between two operations. Gradients of
/// `tensors.parameters` that the step makes are dropped at its end, unless kNone. In a called step
/// any other tensor that is still held then is a result.
///
/// With `limit` the step holds no more memory meanwhile where it can
/// (plan/record/online_recompute.h).
///
/// The method: plan/record/intercept.h. Tensors are told apart by their storage. One recording at a
/// time in a process.
CapturedStep record_step(const std::function<std::vector<at::Tensor>()>& step,
                         const StepTensors& tensors, LaterSteps later = LaterSteps::kReplayed,
                         std::optional<RecordingLimit> limit = {});

/// Throws UserError naming the first operator, shape or number in which two recordings differ: only
/// a step that is the same every time can be planned. Numbers of a called step may differ. Writes
/// and results that only `a` has go to `b`.
void check_steady(const CapturedStep& a, CapturedStep& b, LaterSteps later = LaterSteps::kReplayed);

/// `record_step` twice; both have to agree. The step must be steady: gradients, momentum and the
/// like exist already, so call it once or twice before.
CapturedStep capture(const std::function<std::vector<at::Tensor>()>& step,
                     const StepTensors& tensors, LaterSteps later = LaterSteps::kReplayed);

}  // namespace dovetail::plan
