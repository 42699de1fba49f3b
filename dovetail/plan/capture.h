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
/// `step` runs twice, as it would without being recorded, and returns what is to be read after a step (the loss). It
/// must be steady: gradients, momentum and the like exist already, so call it once or twice before. Both recordings
/// have to agree in every operator, shape and number; UserError names the first place where they differ, and any
/// operator that reads a tensor's values to go on (item, nonzero, unique) or changes the size of a tensor.
///
/// The method: a boxed fallback at DispatchKey::Fake, registered only while this runs. Tensors are told apart by their
/// storage. One capture at a time in a process.
CapturedStep capture(const std::function<std::vector<at::Tensor>()>& step, const StepTensors& tensors);

}  // namespace dovetail::plan
