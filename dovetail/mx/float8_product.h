#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "dovetail/mx/recipe.h"

namespace dovetail::mx {

/// Returns true if Linears with this recipe multiply FP8 codes directly on `device`. All operands
/// must be FP8, with one scale each or all in blocks. One scale needs compute capability 8.9 or
/// later, blocks need 9.0. Sizes restrict it further (QuantizedLinear).
bool has_float8_products(const LinearRecipe& recipe, at::Device device);

/// Multiplies FP8 codes on a GPU: a (rows, depth) times b (cols, depth) transposed. Both are
/// contiguous. Scales have the layout that at::_scaled_mm_v2 reads. Returns (rows, cols), bfloat16,
/// plus `bias` (cols) if there is one.
at::Tensor float8_product(const at::Tensor& a, const at::Tensor& a_scales, Blocks a_blocks,
                          const at::Tensor& b, const at::Tensor& b_scales, Blocks b_blocks,
                          const std::optional<at::Tensor>& bias = {});

}  // namespace dovetail::mx
