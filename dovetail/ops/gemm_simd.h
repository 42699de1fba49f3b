#pragma once

#include <cstdint>
#include <span>

namespace dovetail {

/// A matrix in float32 with one of its strides 1.
struct MatrixView {
  const float* data;
  int64_t row_stride, column_stride;
  /// Gathered rows (columns if row_stride is 1): the i-th starts at row_index[i] times the stride,
  /// which is above 1. Null: row i starts at i times the stride.
  const int32_t* row_index = nullptr;
  /// Bfloat16 elements to read in place of `data`, with a stride along k above 1. Term p of the
  /// product is then the pair of elements 2p and 2p + 1, out of `bfloat16_terms`. Null: read
  /// `data`.
  const uint16_t* bfloat16 = nullptr;
  int64_t bfloat16_terms = 0;
};

/// c (m, n), rows `ldc` apart, = [c +] [bias per column +] a (m, k) @ b (k, n). `bias` may be null,
/// and is not used with `accumulate` unless there is `c_row`. `row_sums` (m), null for none,
/// becomes the sums of a's rows.
struct GemmProblem {
  int64_t m, n, k;
  MatrixView a, b;
  float* c;
  int64_t ldc;
  const float* bias;
  bool accumulate;
  float* row_sums;
  /// Null, or m different numbers: row i of the product, bias included and times c_weight[i] (null:
  /// 1), is added to row c_row[i] of c. With `accumulate`.
  const int32_t* c_row;
  const float* c_weight;
  /// The operands are bfloat16, two terms to a float32: k and the views count pairs. Where
  /// `multiplies_pairs`.
  bool pairs = false;
  /// Not null: c in bfloat16 instead, `ldc` apart. Neither `accumulate` then, nor more pairs than
  /// kBFloat16Pairs.
  uint16_t* c_bfloat16 = nullptr;
};
constexpr int64_t kBFloat16Pairs = 768;

/// Whether the kernel in use takes pairs: AVX-512 on a processor with its BF16 instructions.
bool multiplies_pairs();

/// Runs on parallel_workers() threads, which go from one problem to the next without waiting for
/// each other. Problems may write to the same c only by `c_row`, and then do so in their order.
/// Each element of a product is one sum in the order of k, cut every `kDepth` terms: the same bits
/// for any number of threads and wherever the element lies.
void gemm_float32(std::span<const GemmProblem> problems);

}  // namespace dovetail
