#pragma once

#include <vector>

#include "dovetail/mx/float8_gpu.h"
#include "dovetail/mx/native.h"
#include "dovetail/mx/quantize_simd.h"

namespace dovetail::mx {

/// y (rows, cols) = a (rows, depth) b (cols, depth)^T [+ bias (cols), bfloat16], all row-major;
/// `narrow`: y is bfloat16, else float32 and without bias. Pointers are aligned to 16 bytes; scales
/// are `swizzled_scales`.
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

/// Our kernels for CUDA tensors. Problems are those of the CPU kernels with pointers to the current
/// GPU's memory; work is queued on torch's current stream. They live in the library of
/// dovetail/ops/cuda_kernels.h.
struct CudaKernels {
  /// Row and column, from one read of x, or square. `counts`: waits for the GPU and adds; null:
  /// neither.
  void (*quantize)(const QuantizeProblem& problem, QuantizeCounts* counts);
  void (*dequantize_to_float32)(const DequantizeProblem& problem, float* y);
  void (*dequantize_to_bfloat16)(const DequantizeProblem& problem, uint16_t* y);
  /// By cuBLASLt.
  void (*native_product)(const NativeProblem& problem);
  void (*float8_amax)(const Float8GpuProblem& problem);
  void (*quantize_float8)(const Float8GpuProblem& problem);
  /// Names and compute capabilities of this process's GPUs.
  std::vector<NativeDevice> (*describe_gpus)();
};

/// Null in a build without nvcc. Opens the library at the first call, which needs a GPU in use.
const CudaKernels* cuda_kernels();

/// The library's function, `const CudaKernels* dovetail_mx_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_mx_cuda_kernels";

}  // namespace dovetail::mx
