#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "dovetail/ops/activation_simd.h"
#include "dovetail/ops/adamw_simd.h"
#include "dovetail/ops/cross_entropy_simd.h"
#include "dovetail/ops/norm_simd.h"
#include "dovetail/ops/rotary.h"

/// Launchers: functions that queue kernels on a given stream. They use neither ATen nor torch's
/// streams, because a .cu file with ATen takes 39 s to compile.
namespace dovetail::ops::cuda {

/// Launches the forward norm. `branch` and `sum` are described at CudaKernels::norm_forward.
void norm_forward(const NormProblem& problem, const void* branch, void* sum, void* y,
                  cudaStream_t stream);

/// Returns the number of parts into which the backward norm divides the rows; each part is summed
/// on its own. It depends on `rows` alone, so that sums do not depend on the GPU.
int64_t norm_parts(int64_t rows);
/// Launches the backward norm. `dsum` is described at CudaKernels::norm_backward. `partial` is
/// scratch memory of 2 * norm_parts(rows) * width floats.
void norm_backward(const NormProblem& problem, const void* dy, const void* dsum, void* dx,
                   float* partial, float* dweight, float* dbias, cudaStream_t stream);

void activation_forward(const ActivationProblem& problem, void* y, cudaStream_t stream);
void activation_backward(const ActivationProblem& problem, const void* dy, void* dx,
                         cudaStream_t stream);

/// Returns the number of parts into which `column_sums` divides the rows; each part is summed on
/// its own. It depends on `rows` alone.
int64_t column_sum_parts(int64_t rows);
/// Launches the column sums of x (rows, columns), both sizes above 0. `partial` is scratch memory
/// of column_sum_parts(rows) * columns floats. `to` (columns) has the storage of x.
void column_sums(Storage storage, const void* x, int64_t rows, int64_t columns, float* partial,
                 void* to, cudaStream_t stream);

void adamw(std::span<const AdamWSpan> spans, const AdamWScalars& scalars, cudaStream_t stream);
void squares(std::span<const SquaresPiece> pieces, double* sums, cudaStream_t stream);
void cross_entropy(const CrossEntropyProblem& problem, cudaStream_t stream);

void rotate(const RotaryProblem& problem, std::span<const RotaryPart> parts, cudaStream_t stream);

}  // namespace dovetail::ops::cuda
