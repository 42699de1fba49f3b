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

/// Matrix product c (m, n) = [c +] a (m, k) b (k, n), where c is added if `accumulate` is set.
/// Sizes m, n and k are above 0. The result c is row-major, and its rows are `c_stride` elements
/// apart.
struct GroupedProduct {
  struct Operand {
    const void* data;
    int64_t stride;   ///< distance of rows in elements; the matrix in memory is row-major
    bool transposed;  ///< true: the matrix in memory is the transpose of the operand
  };
  int64_t m, n, k;
  Operand a, b;
  void* c;
  int64_t c_stride;
  bool accumulate;
};

/// Table of kernels for CUDA tensors. They take the problem structs of the CPU kernels (included
/// above), with pointers to memory of the current GPU. Work is queued on torch's current stream.
/// The kernels are in a separate library, which is built if nvcc is found.
struct CudaKernels {
  /// Writes the norm of x (N, C) to y. If branch (N, C) is not null, y is the norm of x + branch
  /// instead. This sum is rounded to the storage format and also written to sum (N, C).
  void (*norm_forward)(const NormProblem& problem, const void* branch, void* sum, void* y);
  /// Computes dx, dweight and dbias from dy. If dsum (N, C) is not null, it is added to dx. It
  /// holds the gradient that x + branch receives from other operations than the norm.
  void (*norm_backward)(const NormProblem& problem, const void* dy, const void* dsum, void* dx,
                        float* dweight, float* dbias);
  void (*activation_forward)(const ActivationProblem& problem, void* y);
  void (*activation_backward)(const ActivationProblem& problem, const void* dy, void* dx);
  /// Computes all products by one cuBLAS call, with sums in float32. Results must not overlap. If
  /// `storage` is bfloat16, all matrices must be aligned to 16 bytes.
  void (*grouped_products)(Storage storage, std::span<const GroupedProduct> products);
  /// Writes the sums of the columns of x (rows, columns) to `to` (columns). Elements are added in
  /// float32, and the sums are rounded to `storage`, the format of x and `to`.
  void (*column_sums)(Storage storage, const void* x, int64_t rows, int64_t columns, void* to);

  /// Updates the elements of all spans.
  void (*adamw)(std::span<const AdamWSpan> spans, const AdamWScalars& scalars);
  /// Writes the sum of squares of piece i to sums[i].
  void (*squares)(std::span<const SquaresPiece> pieces, double* sums);
  /// Computes the losses of all rows, and their gradients if requested. Needs at least one row. A
  /// target outside the vocabulary makes the loss of its row NaN.
  void (*cross_entropy)(const CrossEntropyProblem& problem);

  /// Records the GPU work that `work` queues as a CUDA graph, and returns the graph. `GpuGraph`
  /// (gpu_graph.h) calls this and the next two functions.
  void* (*record_graph)(const std::function<void()>& work);
  /// Queues the work of a graph again.
  void (*replay_graph)(void* graph);
  /// Destroys a graph.
  void (*drop_graph)(void* graph);

  /// Rotates at most kMaxRotaryParts parts in one launch.
  void (*rotate)(const RotaryProblem& problem, std::span<const RotaryPart> parts);
};

/// Returns the table, or null in a build without nvcc; GPU operations are then composed of ATen's
/// operators. The command `dovetail doctor` shows which case applies. The first call opens the
/// library. Before it, the process must have begun to use a GPU (`load_gpu` in base/gpu.h).
const CudaKernels* cuda_kernels();

/// Returns the address of function `entry` of the CUDA library, or null in a build without it.
void* open_cuda_library(const char* entry);

/// Returns the table of kernels that function `entry` of the CUDA library returns, or null in a
/// build without this library. Each part of Dovetail with CUDA kernels has a table of its own, for
/// example ops and mx.
template <class Kernels>
const Kernels* cuda_kernel_table(const char* entry) {
  void* function = open_cuda_library(entry);
  return function == nullptr ? nullptr : reinterpret_cast<const Kernels* (*)()>(function)();
}

/// File name of the CUDA library. It is in the folder of our main library.
inline constexpr const char* kCudaLibrary = "libdovetail_cuda.so";
/// Name of the function in the CUDA library that returns the table of ops: `const CudaKernels*
/// dovetail_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_cuda_kernels";

}  // namespace dovetail::ops
