#pragma once

#include <cstdint>
#include <span>

namespace dovetail {

/// Float32 matrix; one of its strides is 1.
struct MatrixView {
  const float* data;
  int64_t row_stride, column_stride;
  /// Null, or the index of each row (if row_stride is 1: of each column). Row i begins at line[i]
  /// times its stride, which must be above 1.
  const int32_t* line = nullptr;
  /// Null, or bfloat16 numbers that replace `data`. Their stride along the terms of the product
  /// must not be 1. Term p of the product is then the pair of bfloat16 terms 2p and 2p + 1. There
  /// are `terms` bfloat16 terms.
  const uint16_t* halves = nullptr;
  int64_t terms = 0;
};

/// Matrix product c (m, n) = [c +] [bias per column +] a (m, k) @ b (k, n); rows of c are `ldc`
/// elements apart. `bias` may be null. With `accumulate` it is ignored, unless `c_row` is set.
/// `row_sums` (m) receives the sums of a's rows; it may be null.
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
  /// Operands are bfloat16, two terms to a float32: k and the views count pairs. Needs
  /// `multiplies_pairs`.
  bool pairs = false;
  /// Null, or a bfloat16 result that replaces c, with rows `ldc` elements apart. Excludes
  /// `accumulate`, and more than kBFloat16Pairs pairs.
  uint16_t* c_halves = nullptr;
};
constexpr int64_t kBFloat16Pairs = 768;

/// Returns true if the kernel in use takes pairs: AVX-512 on a processor with its BF16
/// instructions.
bool multiplies_pairs();

/// Computes all problems on parallel_workers() threads. These go from one problem to the next
/// without waiting for each other. Problems may write to the same c only by `c_row`, and then do so
/// in their order. Each element of a product is one sum in the order of k, cut every `kDepth`
/// terms. So the bits are the same for any number of threads and any position of the element.
void gemm_float32(std::span<const GemmProblem> problems);

}  // namespace dovetail
