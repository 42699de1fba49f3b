#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/mx/tensor.h"

namespace dovetail::mx {

/// `dequantize` (mx/quantize.h) into memory that is there: `y` of x's sizes, contiguous, float32 or
/// bfloat16. Throws UserError for another.
void dequantize_into(const MXTensor& x, const at::Tensor& y);

}  // namespace dovetail::mx
