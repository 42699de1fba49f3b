#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "dovetail/ops/activation_simd.h"
#include "dovetail/ops/adamw_simd.h"
#include "dovetail/ops/cross_entropy_simd.h"
#include "dovetail/ops/norm_simd.h"
#include "dovetail/ops/rotary.h"

namespace dovetail {

/// c (m, n) = [c +] a (m, k) b (k, n), none of m, n and k zero. c is row-major, its rows `c_stride`
/// elements apart.
struct GroupedProduct {
  struct Operand {
    const void* data;
    int64_t stride;   ///< of what is stored row-major: the matrix or
    bool transposed;  ///< its transpose
  };
  int64_t m, n, k;
  Operand a, b;
  void* c;
  int64_t c_stride;
  bool accumulate;
};

/// Our kernels for CUDA tensors. Problems are those of the CPU kernels with pointers to the current
/// GPU's memory; work is queued on torch's current stream. They live in a library of their own,
/// built where nvcc is found.
struct CudaKernels {
  /// branch (N, C) may be null. Otherwise x + branch is rounded, written to sum (N, C) and
  /// normalized.
  void (*norm_forward)(const NormProblem& problem, const void* branch, void* sum, void* y);
  /// dsum (N, C), the gradient of the sum by another path, is added to dx; it may be null.
  void (*norm_backward)(const NormProblem& problem, const void* dy, const void* dsum, void* dx,
                        float* dweight, float* dbias);
  void (*activation_forward)(const ActivationProblem& problem, void* y);
  void (*activation_backward)(const ActivationProblem& problem, const void* dy, void* dx);
  /// By cuBLAS, in one call, sums in float32; the results do not overlap. In bfloat16 all operands
  /// lie on 16 bytes.
  void (*grouped_products)(Storage storage, std::span<const GroupedProduct> products);
  /// to (columns) becomes the sums of the columns of x (rows, columns), in float32 and then in the
  /// storage of both.
  void (*column_sums)(Storage storage, const void* x, int64_t rows, int64_t columns, void* to);

  void (*adamw)(std::span<const AdamWSpan> spans, const AdamWScalars& scalars);
  /// sums[i] becomes the sum of squares of piece i.
  void (*squares)(std::span<const SquaresPiece> pieces, double* sums);
  /// At least one row. A target outside of the vocabulary makes the loss of its row NaN.
  void (*cross_entropy)(const CrossEntropyProblem& problem);

  /// `GpuGraph`: a graph of what `work` queues, its replay, its end.
  void* (*record_graph)(const std::function<void()>& work);
  void (*replay_graph)(void* graph);
  void (*drop_graph)(void* graph);

  /// At most kMaxRotaryParts parts, in one launch.
  void (*rotate)(const RotaryProblem& problem, std::span<const RotaryPart> parts);
};

/// Null in a build without nvcc, whose operations on a GPU are composed of ATen's; `dovetail
/// doctor` says which it is. Opens the library at the first call, which needs a GPU in use.
const CudaKernels* cuda_kernels();

/// A function of that library, null in a build without it.
void* open_cuda_library(const char* entry);

/// The table that `entry` gives, null in a build without it: each layer with kernels has one.
template <class Kernels>
const Kernels* cuda_kernel_table(const char* entry) {
  void* function = open_cuda_library(entry);
  return function == nullptr ? nullptr : reinterpret_cast<const Kernels* (*)()>(function)();
}

/// The library beside ours and the function for this table, `const CudaKernels*
/// dovetail_cuda_kernels()`.
inline constexpr const char* kCudaLibrary = "libdovetail_cuda.so";
inline constexpr const char* kCudaEntry = "dovetail_cuda_kernels";

}  // namespace dovetail
