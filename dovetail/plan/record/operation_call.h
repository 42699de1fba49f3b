#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Call an operation below autograd on the storages that `storage_of` gives for its arguments; what
/// it returns.
torch::jit::Stack call(const CapturedOperation& operation,
                       const std::function<c10::Storage(int)>& storage_of);

/// The view of `storage` that `use` describes.
at::Tensor tensor_of(const TensorUse& use, c10::Storage storage);

/// Every tensor among the values of `stack`, in order, undefined ones left out.
void for_each_tensor(const torch::jit::Stack& stack,
                     const std::function<void(const at::Tensor&)>& visit);

}  // namespace dovetail::plan
