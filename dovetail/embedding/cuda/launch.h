#pragma once

#include <cuda_runtime_api.h>

#include "dovetail/embedding/pack/cuda_kernels.h"

/// Launchers of the kernels, which see neither ATen nor torch's streams. None may be called with
/// nothing to do.
namespace dovetail::embedding::cuda {

void check(const CudaCheckProblem& problem, cudaStream_t stream);
void pool(const CudaPoolProblem& problem, cudaStream_t stream);

/// Bytes of scratch for `sort_occurrences`.
size_t sort_scratch(int64_t bags, int64_t count, int row_bits);
/// Fills the problem's arrays up to row_begins and counts[0]. An error is cub's; those of our own
/// launches are what cudaGetLastError gives.
cudaError_t sort_occurrences(const CudaUpdateProblem& problem, cudaStream_t stream);
/// The step of every distinct row, of arrays that are filled so.
void update_rows(const CudaUpdateProblem& problem, cudaStream_t stream);

}  // namespace dovetail::embedding::cuda
