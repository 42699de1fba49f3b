#pragma once

#ifndef DOVETAIL_CUDA_ON_CPU  // tests/fit/cuda_on_cpu.h
#include <cuda_runtime_api.h>
#endif

#include "dovetail/embedding/pack/cuda_kernels.h"

/// Launchers of the kernels behind CudaKernels (cuda_kernels.h). They know neither ATen nor torch's
/// streams, and queue work on `stream`. Every call must have work to do: zero-sized problems are
/// not allowed.
namespace dovetail::embedding::cuda {

/// Launches CudaKernels::check.
void check(const CudaCheckProblem& problem, cudaStream_t stream);
/// Launches CudaKernels::pool.
void pool(const CudaPoolProblem& problem, cudaStream_t stream);

/// Returns the bytes of scratch memory that `sort_occurrences` needs. `bags`, `count` and
/// `row_bits` are as in CudaUpdateProblem.
size_t sort_scratch(int64_t bags, int64_t count, int row_bits);
/// First half of an update: lists all occurrences and sorts them by row. Fills the problem's arrays
/// from `bag_begins` to `row_begins`, and counts[0]. Returns the error of cub (CUDA's library of
/// parallel primitives). The caller gets errors of this project's own launches from
/// cudaGetLastError.
cudaError_t sort_occurrences(const CudaUpdateProblem& problem, cudaStream_t stream);
/// Second half of an update: updates every distinct row once. sort_occurrences must have filled the
/// arrays.
void update_rows(const CudaUpdateProblem& problem, cudaStream_t stream);

/// Launches CudaKernels::move.
void move(const CudaMoveProblem& problem, cudaStream_t stream);

}  // namespace dovetail::embedding::cuda
