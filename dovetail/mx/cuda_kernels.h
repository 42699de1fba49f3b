#pragma once

#include <vector>

#include "dovetail/mx/float8_gpu.h"
#include "dovetail/mx/native.h"
#include "dovetail/mx/quantize_simd.h"

namespace dovetail::mx {

/// Computes y (rows, cols) = a (rows, depth) b (cols, depth)^T [+ bias (cols), bfloat16], all
/// row-major. `narrow`: y is bfloat16; otherwise y is float32 and there is no bias. Pointers are
/// aligned to 16 bytes. Scales have the layout of `swizzled_scales`.
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

/// Kernels for CUDA tensors. They take the problems of the CPU kernels, with pointers to the
/// current GPU's memory. Work is queued on torch's current stream. The kernels are in the library
/// that dovetail/ops/cuda_kernels.h opens.
struct CudaKernels {
  /// Quantizes row and column copies from one read of x, or the square copy. With `counts`, waits
  /// for the GPU and adds to them. With null, neither counts nor waits.
  void (*quantize)(const QuantizeProblem& problem, QuantizeCounts* counts);
  void (*dequantize_to_float32)(const DequantizeProblem& problem, float* y);
  void (*dequantize_to_bfloat16)(const DequantizeProblem& problem, uint16_t* y);
  /// Multiplies with cuBLASLt.
  void (*native_product)(const NativeProblem& problem);
  void (*float8_amax)(const Float8GpuProblem& problem);
  void (*quantize_float8)(const Float8GpuProblem& problem);
  /// Returns names and compute capabilities of this process's GPUs.
  std::vector<NativeDevice> (*describe_gpus)();
};

/// Returns null in a build without nvcc. The first call opens the library and requires a GPU in
/// use.
const CudaKernels* cuda_kernels();

/// Name of the library's entry function, `const CudaKernels* dovetail_mx_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_mx_cuda_kernels";

}  // namespace dovetail::mx
