#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/moe/dispatch.h"

/// dispatch.h for CUDA tensors. Tensors are contiguous, weights and sums float32, `place` where a
/// row lies, (rows) int64, undefined without padding. Throws UserError in a build without kernels
/// for the GPU.
namespace dovetail::moe::gpu {

Dispatch dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts);

/// y[place[r]] = weight[r] x[to.token[r]], other rows of y as they are; weight undefined: 1. With
/// `other` like y, dots[r] = <x[to.token[r]], other[place[r]]>.
void take_tokens(const at::Tensor& x, const Dispatch& to, const at::Tensor& place,
                 const at::Tensor& weight, const at::Tensor& other, at::Tensor& y,
                 at::Tensor& dots);

/// (T, C) float32: y[t] = sum over the rows r of token t, ascending, of weight[r] rows[place[r]];
/// weight undefined: 1.
at::Tensor sum_rows(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to,
                    const at::Tensor& place);

}  // namespace dovetail::moe::gpu
