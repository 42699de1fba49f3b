#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail {

/// Returns true if a tracer such as torch.compile, torch.export or torch.func follows the tensor.
/// It has no memory that an operator could read, but other operators may be called on it.
inline bool is_traced(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         (tensor.key_set().has(c10::DispatchKey::Python) || !tensor.has_storage());
}

}  // namespace dovetail
