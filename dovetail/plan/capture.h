#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/plan/captured_step.h"

namespace dovetail::plan {

/// The tensors that a step finds and what they are for. What it reads beside these is taken for a constant.
struct StepTensors {
  std::vector<std::pair<std::string, at::Tensor>> inputs, parameters, state;
};

/// Record one training step (forward, backward, update) on the CPU as the operators that it calls below autograd.
///
/// `step` runs as it would without being recorded, and returns what is to be read after a step (the loss). UserError
/// names any operator that reads a tensor's values to go on (item, nonzero, unique), changes the size of a tensor, or
/// reads memory that no operator has written (a kernel on pointers wrote it: see base/operation.h).
///
/// The method: a boxed fallback at DispatchKey::Fake, registered only while this runs. Tensors are told apart by their
/// storage. One recording at a time in a process.
CapturedStep record_step(const std::function<std::vector<at::Tensor>()>& step, const StepTensors& tensors);

/// Throws UserError naming the first operator, shape or number in which two recordings differ: only a step that is the
/// same every time can be planned.
void check_steady(const CapturedStep& a, const CapturedStep& b);

/// `record_step` twice; both have to agree. The step must be steady: gradients, momentum and the like exist already, so
/// call it once or twice before.
CapturedStep capture(const std::function<std::vector<at::Tensor>()>& step, const StepTensors& tensors);

}  // namespace dovetail::plan
