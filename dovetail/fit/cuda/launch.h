#pragma once

#include "dovetail/fit/kmeans/cuda_kernels.h"

struct CUstream_st;  // CUDA's type behind cudaStream_t

/// Launchers of the kernels behind CudaKernels (cuda_kernels.h). They know neither ATen nor torch's
/// streams, and queue work on `stream`. Each call needs at least one row.
namespace dovetail::fit::cuda {

using Stream = CUstream_st*;

void squares(const CudaSquares& problem, Stream stream);
void nearest(const CudaAssign& problem, Stream stream);
void sums(const CudaAssign& problem, int64_t first, int64_t shards, double* sums, Stream stream);
void add_tree(double* sums, int64_t place, int64_t shards, int64_t width, Stream stream);

}  // namespace dovetail::fit::cuda
