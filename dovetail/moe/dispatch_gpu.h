#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/moe/dispatch.h"

/// CUDA part of dispatch.h, which explains rows and places. Tensors are contiguous; weights and
/// sums are float32. Shapes: tokens x (T, C), rows y and `other` (P, C), `weight` (R). `to` holds
/// the rows. `place` (R) int64 is the place of each row, undefined if rows are dropless. All
/// functions throw UserError in a build without GPU kernels.
namespace dovetail::moe::gpu {

/// Computes the rows for moe::dispatch on the GPU. Copies the numbers of rows of the experts to the
/// host, which waits for them.
DispatchedRows dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                        const at::Tensor& kept);

/// Copies tokens to rows: y[place[r]] = weight[r] x[token[r]]. An undefined weight counts as 1.
/// Other rows of y stay as they are. If `other` (of y's shape) and `dots` (R) are defined, dots[r]
/// becomes the scalar product of x[token[r]] and other[place[r]].
void take_tokens(const at::Tensor& x, const DispatchedRows& to, const at::Tensor& place,
                 const at::Tensor& weight, const at::Tensor& other, at::Tensor& y,
                 at::Tensor& dots);

/// Returns y (T, C) float32: y[t] is the sum of weight[r] rows[place[r]] over the rows r of token
/// t, added in ascending order of r. An undefined weight counts as 1.
at::Tensor sum_rows(const at::Tensor& rows, const at::Tensor& weight, const DispatchedRows& to,
                    const at::Tensor& place);

}  // namespace dovetail::moe::gpu
