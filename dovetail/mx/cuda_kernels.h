#pragma once

#include "dovetail/mx/quantize_simd.h"

namespace dovetail::mx {

/// Our kernels for CUDA tensors. Problems are those of the CPU kernels with pointers to the current GPU's memory; work
/// is queued on torch's current stream. They live in the library of dovetail/ops/cuda_kernels.h.
struct CudaKernels {
  /// Row and column, from one read of x, or square. `counts`: waits for the GPU and adds; null: neither.
  void (*quantize)(const QuantizeProblem& problem, QuantizeCounts* counts);
  void (*dequantize_to_float32)(const DequantizeProblem& problem, float* y);
  void (*dequantize_to_bfloat16)(const DequantizeProblem& problem, uint16_t* y);
};

/// Null in a build without nvcc. Opens the library at the first call, which needs a GPU in use.
const CudaKernels* cuda_kernels();

/// The library's function, `const CudaKernels* dovetail_mx_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_mx_cuda_kernels";

}  // namespace dovetail::mx
