#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dovetail/moe/dispatch.h"
#include "dovetail/moe/expert_weights.h"

/// Choices of experts that a user passes to an operator of the library.
namespace dovetail::moe {

/// Throws UserError unless expert and slot are (T, k) int32 and name existing experts. A GPU stops
/// at an index that names none, with an error of CUDA: the host does not wait for it.
void check_choices(const at::Tensor& expert, const at::Tensor& slot, int64_t experts);
/// Checks the choices, and runs the experts on them (`run_choices`).
at::Tensor checked_experts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                           const at::Tensor& slot, const ExpertWeights& experts);
/// Checks the choices, and makes their dispatch.
Dispatch checked_dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts);

}  // namespace dovetail::moe
