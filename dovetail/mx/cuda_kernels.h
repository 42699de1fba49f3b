#pragma once

#include <vector>

#include "dovetail/mx/float8_gpu.h"
#include "dovetail/mx/native.h"
#include "dovetail/mx/quantize_simd.h"

namespace dovetail::mx {

/// Problem of a native product: a matrix product that a GPU computes directly from codes and scales
/// (native.h). Computes y (rows, cols) = a (rows, depth) b (cols, depth)^T [+ bias (cols),
/// bfloat16], all row-major. If `narrow`, y is bfloat16; otherwise y is float32 and there is no
/// bias. Pointers are aligned to 16 bytes. Scales have the layout of `swizzled_scales` (tensor.h).
struct NativeProblem {
  struct Matrix {
    const void* codes = nullptr;
    const void* scales = nullptr;
    Format format = Format::kE4M3;
  };
  int64_t rows = 0, cols = 0, depth = 0;
  Matrix a, b;
  const void* bias = nullptr;
  bool narrow = false;
  void* y = nullptr;
};

/// Table of kernels for CUDA tensors. All pointers in problems are to memory of the current GPU.
/// `quantize` and the dequantizing kernels take the problems of the CPU kernels (quantize_simd.h).
/// Work is queued on torch's current stream. The kernels are in the library that
/// dovetail/ops/cuda_kernels.h opens.
struct CudaKernels {
  /// Makes the copies of x that `problem` requests. Row and column copies come from one read of x.
  /// If `counts` is not null, waits for the GPU and adds the statistics to `counts`. If `counts` is
  /// null, the function neither counts nor waits.
  void (*quantize)(const QuantizeProblem& problem, QuantizeCounts* counts);
  void (*dequantize_to_float32)(const DequantizeProblem& problem, float* y);
  void (*dequantize_to_bfloat16)(const DequantizeProblem& problem, uint16_t* y);
  /// Computes a native product with cuBLASLt.
  void (*native_product)(const NativeProblem& problem);
  /// Raises `*problem.most` to the largest magnitude of the matrix if that is larger.
  void (*float8_amax)(const Float8GpuProblem& problem);
  /// Quantizes a matrix and its transpose to FP8. If `problem.kind` is kWhole and there is no
  /// `problem.amax`, `float8_amax` must run before.
  void (*quantize_float8)(const Float8GpuProblem& problem);
  /// Returns names and compute capabilities of the GPUs that this process sees.
  std::vector<NativeDevice> (*describe_gpus)();
};

/// Returns the table, or null in a build without nvcc. The first call opens the library. This
/// process must use a GPU by then (`load_gpu` in base/gpu.h).
const CudaKernels* cuda_kernels();

/// Name of the function in the CUDA library that returns the table: `const CudaKernels*
/// dovetail_mx_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_mx_cuda_kernels";

}  // namespace dovetail::mx
