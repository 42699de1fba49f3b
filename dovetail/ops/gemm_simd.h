#pragma once

#include <cstdint>
#include <span>

namespace dovetail::ops {

/// Float32 or bfloat16 matrix; one of its strides is 1.
struct MatrixView {
  const float* data;
  int64_t row_stride, column_stride;
  /// Indices of the rows to gather (of columns, if row_stride is 1). The i-th of them starts at
  /// row_index[i] times the stride of rows (columns), which is above 1. Null: it starts at i times
  /// this stride.
  const int32_t* row_index = nullptr;
  /// Bfloat16 elements to read in place of `data`, with a stride along k above 1. The kernel reads
  /// them in pairs (`GemmProblem::pairs`): elements 2p and 2p + 1 along k. There are
  /// `bfloat16_terms` elements along k. Null: read `data`.
  const uint16_t* bfloat16 = nullptr;
  int64_t bfloat16_terms = 0;
};

/// Matrix product c (m, n) = [c +] [bias per column +] a (m, k) @ b (k, n). Rows of c are `ldc`
/// elements apart. `accumulate` adds c. `bias` may be null. With `accumulate` it is ignored, unless
/// `c_row` is set. `row_sums` (m) receives the sums of a's rows; it may be null.
struct GemmProblem {
  int64_t m, n, k;
  MatrixView a, b;
  float* c;
  int64_t ldc;
  const float* bias;
  bool accumulate;
  float* row_sums;
  /// Null, or m different row numbers: row i of the product is added to row c_row[i] of c. The row
  /// includes the bias and is multiplied by c_weight[i], or by 1 if c_weight is null. Needs
  /// `accumulate`.
  const int32_t* c_row;
  const float* c_weight;
  /// Operands are bfloat16. Two neighbours along k, a pair, take the place of one float32: k and
  /// the views count pairs. Needs `multiplies_pairs`.
  bool pairs = false;
  /// Null, or a bfloat16 result that replaces c, with rows `ldc` elements apart. Excludes
  /// `accumulate`, and k above kBFloat16Pairs.
  uint16_t* c_bfloat16 = nullptr;
};
/// Maximum k (in pairs) of a product whose result the kernel writes in bfloat16.
constexpr int64_t kBFloat16Pairs = 768;

/// Returns true if the kernel in use multiplies pairs of bfloat16: AVX-512 on a processor with its
/// BF16 instructions.
bool multiplies_pairs();

/// Computes all problems on parallel_workers() threads. These go from one problem to the next
/// without waiting for each other. Problems may write to the same c only by `c_row`, and then do so
/// in their order. Each element of a product is a sum in the order of k. It is cut into slices,
/// which depend on k and the instruction set alone. So the bits are the same for any number of
/// threads and any position of the element.
void gemm_float32(std::span<const GemmProblem> problems);

}  // namespace dovetail::ops
