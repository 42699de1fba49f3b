#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/mx/tensor.h"

namespace dovetail::mx {

/// Dequantizes `x` into the memory of `y`, like `dequantize` (mx/quantize.h). `y` has x's sizes and
/// device, and is contiguous, float32 or bfloat16. Throws UserError for another `y`.
void dequantize_into(const MXTensor& x, const at::Tensor& y);

}  // namespace dovetail::mx
