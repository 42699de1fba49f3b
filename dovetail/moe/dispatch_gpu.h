#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/moe/dispatch.h"

/// dispatch.h for CUDA tensors. Tensors are contiguous; weights and sums are float32. `place` (R)
/// int64 is the place of each row, undefined if dropless. Throws UserError in a build without
/// kernels for the GPU.
namespace dovetail::moe::gpu {

/// Copies the counts of the experts to the host, which waits for them.
DispatchedRows dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts);

/// y[place[r]] = weight[r] x[token[r]] (weight undefined: 1); other rows of y stay as they are.
/// With `other`, of y's shape, dots[r] = <x[token[r]], other[place[r]]>.
void take_tokens(const at::Tensor& x, const DispatchedRows& to, const at::Tensor& place,
                 const at::Tensor& weight, const at::Tensor& other, at::Tensor& y,
                 at::Tensor& dots);

/// (T, C) float32: y[t] = sum over the rows r of token t, ascending, of weight[r] rows[place[r]]
/// (weight undefined: 1).
at::Tensor sum_rows(const at::Tensor& rows, const at::Tensor& weight, const DispatchedRows& to,
                    const at::Tensor& place);

}  // namespace dovetail::moe::gpu
