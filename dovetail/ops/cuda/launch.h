#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "dovetail/ops/activation_simd.h"
#include "dovetail/ops/adamw_simd.h"
#include "dovetail/ops/cross_entropy_simd.h"
#include "dovetail/ops/norm_simd.h"
#include "dovetail/ops/rotary.h"

/// Launchers of the kernels, which see neither ATen nor torch's streams: a .cu file with ATen takes
/// 39 s to compile.
namespace dovetail::cuda {

/// `branch` and `sum` as in CudaKernels::norm_forward.
void norm_forward(const NormProblem& problem, const void* branch, void* sum, void* y,
                  cudaStream_t stream);

/// Parts in which the rows are summed. Their number depends on `rows` alone, so that sums do not
/// depend on the GPU.
int64_t norm_parts(int64_t rows);
/// `partial` holds 2 * parts * width floats; `dsum` as in CudaKernels::norm_backward.
void norm_backward(const NormProblem& problem, const void* dy, const void* dsum, void* dx,
                   float* partial, float* dweight, float* dbias, cudaStream_t stream);

void activation_forward(const ActivationProblem& problem, void* y, cudaStream_t stream);
void activation_backward(const ActivationProblem& problem, const void* dy, void* dx,
                         cudaStream_t stream);

/// Parts in which the rows are summed: a function of their number alone.
int64_t column_sum_parts(int64_t rows);
/// x (rows, columns), none zero; `partial` holds parts * columns floats; `to` has the storage of x.
void column_sums(Storage storage, const void* x, int64_t rows, int64_t columns, float* partial,
                 void* to, cudaStream_t stream);

void adamw(std::span<const AdamWSpan> spans, const AdamWScalars& scalars, cudaStream_t stream);
void squares(std::span<const SquaresPiece> pieces, double* sums, cudaStream_t stream);
void cross_entropy(const CrossEntropyProblem& problem, cudaStream_t stream);

void rotate(const RotaryProblem& problem, std::span<const RotaryPart> parts, cudaStream_t stream);

}  // namespace dovetail::cuda
