#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/mx/tensor.h"

namespace dovetail::mx {

/// Dequantizes into existing memory, like `dequantize` (mx/quantize.h). `y` has x's sizes and is
/// contiguous, float32 or bfloat16. Throws UserError otherwise.
void dequantize_into(const MXTensor& x, const at::Tensor& y);

}  // namespace dovetail::mx
