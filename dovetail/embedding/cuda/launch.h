#pragma once

#include <cuda_runtime_api.h>

#include "dovetail/embedding/pack/cuda_kernels.h"

/// Kernel launchers. They know neither ATen nor torch's streams. Every call must have work to do:
/// zero-sized problems are not allowed.
namespace dovetail::embedding::cuda {

void check(const CudaCheckProblem& problem, cudaStream_t stream);
void pool(const CudaPoolProblem& problem, cudaStream_t stream);

/// Returns the bytes of scratch memory that `sort_occurrences` needs.
size_t sort_scratch(int64_t bags, int64_t count, int row_bits);
/// Fills the problem's arrays up to `row_begins`, and counts[0]. Returns cub's error. The caller
/// gets errors of this project's own launches from cudaGetLastError.
cudaError_t sort_occurrences(const CudaUpdateProblem& problem, cudaStream_t stream);
/// Updates every distinct row once. sort_occurrences must have filled the arrays.
void update_rows(const CudaUpdateProblem& problem, cudaStream_t stream);

}  // namespace dovetail::embedding::cuda
