#pragma once

#include <cuda_runtime_api.h>

#include "dovetail/mx/float8_gpu.h"

namespace dovetail::mx::cuda {

/// Raises `*problem.most` to the largest magnitude of the matrix if that is larger.
void float8_amax(const Float8GpuProblem& problem, cudaStream_t stream);
/// Quantizes a matrix and its transpose. If `problem.kind` is kWhole and there is no
/// `problem.amax`, `float8_amax` must run before.
void quantize_float8(const Float8GpuProblem& problem, cudaStream_t stream);

}  // namespace dovetail::mx::cuda
