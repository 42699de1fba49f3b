#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "dovetail/ops/activation_simd.h"
#include "dovetail/ops/adamw_simd.h"
#include "dovetail/ops/cross_entropy_simd.h"
#include "dovetail/ops/norm_simd.h"
#include "dovetail/ops/rotary.h"

namespace dovetail::ops {

/// Matrix product c (m, n) = [c +] a (m, k) b (k, n); m, n and k are above 0. c is row-major, and
/// its rows are `c_stride` elements apart.
struct GroupedProduct {
  struct Operand {
    const void* data;
    int64_t stride;   ///< row stride in elements of the matrix in memory, which is row-major
    bool transposed;  ///< the matrix in memory is the transpose of the operand
  };
  int64_t m, n, k;
  Operand a, b;
  void* c;
  int64_t c_stride;
  bool accumulate;
};

/// Kernels for CUDA tensors. They take the problems of the CPU kernels, with pointers to memory of
/// the current GPU. Work is queued on torch's current stream. The kernels are in a separate
/// library, which is built if nvcc is found.
struct CudaKernels {
  /// If branch (N, C) is not null, x + branch is rounded, written to sum (N, C) and normalized.
  void (*norm_forward)(const NormProblem& problem, const void* branch, void* sum, void* y);
  /// Adds dsum (N, C), the gradient of the sum by another path, to dx; dsum may be null.
  void (*norm_backward)(const NormProblem& problem, const void* dy, const void* dsum, void* dx,
                        float* dweight, float* dbias);
  void (*activation_forward)(const ActivationProblem& problem, void* y);
  void (*activation_backward)(const ActivationProblem& problem, const void* dy, void* dx);
  /// Computes all products by one cuBLAS call, with sums in float32. Results must not overlap. In
  /// bfloat16 all operands must be aligned to 16 bytes.
  void (*grouped_products)(Storage storage, std::span<const GroupedProduct> products);
  /// Writes the sums of the columns of x (rows, columns) to `to` (columns). They are added in
  /// float32 and then rounded to `storage`, the storage of x and `to`.
  void (*column_sums)(Storage storage, const void* x, int64_t rows, int64_t columns, void* to);

  void (*adamw)(std::span<const AdamWSpan> spans, const AdamWScalars& scalars);
  /// Writes the sum of squares of piece i to sums[i].
  void (*squares)(std::span<const SquaresPiece> pieces, double* sums);
  /// Takes at least one row. A target outside the vocabulary makes the loss of its row NaN.
  void (*cross_entropy)(const CrossEntropyProblem& problem);

  /// Implementation of `GpuGraph`: records the work that `work` queues as a graph, replays it,
  /// destroys it.
  void* (*record_graph)(const std::function<void()>& work);
  void (*replay_graph)(void* graph);
  void (*drop_graph)(void* graph);

  /// Rotates at most kMaxRotaryParts parts in one launch.
  void (*rotate)(const RotaryProblem& problem, std::span<const RotaryPart> parts);
};

/// Returns the kernels, or null in a build without nvcc: GPU operations are then composed of
/// ATen's. `dovetail doctor` shows which case applies. The first call opens the library and needs a
/// GPU in use.
const CudaKernels* cuda_kernels();

/// Returns a function of that library, or null in a build without it.
void* open_cuda_library(const char* entry);

/// Returns the table that function `entry` returns, or null in a build without the library. Each
/// layer with kernels has its own table.
template <class Kernels>
const Kernels* cuda_kernel_table(const char* entry) {
  void* function = open_cuda_library(entry);
  return function == nullptr ? nullptr : reinterpret_cast<const Kernels* (*)()>(function)();
}

/// File name of the CUDA library, which is in the folder of our main library. Name of its function
/// that returns this table: `const CudaKernels* dovetail_cuda_kernels()`.
inline constexpr const char* kCudaLibrary = "libdovetail_cuda.so";
inline constexpr const char* kCudaEntry = "dovetail_cuda_kernels";

}  // namespace dovetail::ops
