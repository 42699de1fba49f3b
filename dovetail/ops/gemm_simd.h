#pragma once

#include <cstdint>
#include <span>

namespace dovetail::ops {

/// Float32 or bfloat16 matrix; one of its strides is 1.
struct MatrixView {
  const float* data;
  int64_t row_stride, column_stride;
  /// Indices of the lines to use, or null to use all lines in order. Lines are rows if
  /// column_stride is 1, and columns if row_stride is 1. Line i of the operand starts at
  /// row_index[i] times the distance between lines. This distance is the other stride and must be
  /// above 1.
  const int32_t* row_index = nullptr;
  /// Bfloat16 elements that are read in place of `data`. Null: read `data`. The kernel widens each
  /// element to float32. In a product with `GemmProblem::pairs`, it instead joins elements 2p and
  /// 2p + 1 along k to a pair. Their stride is then above 1.
  const uint16_t* bfloat16 = nullptr;
  int64_t bfloat16_terms = 0;  ///< for pairs: number of elements of `bfloat16` along k; else 0
};

/// Matrix product c (m, n) = [c +] [bias +] a (m, k) @ b (k, n).
/// - ldc: distance of rows of c, in elements.
/// - bias (n): added to each row; may be null. With `accumulate`, it is read only if `c_row`
///   is set.
/// - accumulate: the old c is added.
/// - row_sums (m): receives the sum of each row of a; may be null.
struct GemmProblem {
  int64_t m, n, k;
  MatrixView a, b;
  float* c;
  int64_t ldc;
  const float* bias;
  bool accumulate;
  float* row_sums;
  /// Null, or m different row numbers. Row i of the product, bias included, is then multiplied by
  /// c_weight[i] and added to row c_row[i] of c. If c_weight is null, weights are 1. Needs
  /// `accumulate`.
  const int32_t* c_row;
  const float* c_weight;
  /// Operands are bfloat16. Two neighbours along k form a pair and take the place of one float32.
  /// The size k counts pairs, and so do the strides of a view that reads `data`. Needs
  /// `multiplies_pairs`.
  bool pairs = false;
  /// Null, or the address of a bfloat16 result, with rows `ldc` elements apart. It is then written
  /// instead of c. Requires that `accumulate` is false and rounds_in_one_panel(n, k).
  uint16_t* c_bfloat16 = nullptr;
};

/// Returns true if a product with these sizes can have a result in `c_bfloat16`. Its sums are kept
/// in float32 by one thread until they are complete.
bool rounds_in_one_panel(int64_t n, int64_t k);

/// Returns true if the kernel in use multiplies pairs of bfloat16: AVX-512 on a processor with its
/// BF16 instructions.
bool multiplies_pairs();

/// Computes all problems on parallel_workers() threads. A thread goes from one problem to the next
/// without waiting for other threads. Problems may write to the same c only by `c_row`; they then
/// add to it in their order. Each element of a product is a sum over k, which is cut into slices.
/// Slices, and terms in a slice, are added in the order of k. The slices depend only on k and the
/// instruction set. So the bits are the same for any number of threads and any position of the
/// element.
void gemm_float32(std::span<const GemmProblem> problems);

}  // namespace dovetail::ops
