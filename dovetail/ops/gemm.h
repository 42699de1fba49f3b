#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace dovetail::ops {

/// Options of the product c (m, n) = [c +] op(a) @ op(b), where op(a) is (m, k) and op(b) is (k,
/// n).
///
/// A product can gather rows of its operands (`a_rows`, `b_rows`), and add its rows to chosen rows
/// of c (`c_rows`). Row indices are int32 and are not checked.
struct GemmOptions {
  bool transpose_a = false;  ///< op(a) is the transpose of a
  bool transpose_b = false;  ///< op(b) is the transpose of b
  bool accumulate = false;   ///< add the product to c
  /// (n): added to each row of the product. Cannot be combined with `accumulate`, except with
  /// `c_rows`.
  at::Tensor bias = {};
  /// (m), contiguous result: receives the sums of op(a)'s rows. They are taken while the kernel
  /// packs op(a).
  at::Tensor row_sums = {};
  /// Indices of rows of a to use as operand, read in place. Undefined: all rows.
  at::Tensor a_rows = {};
  /// Indices of rows of b to use as operand, read in place. Undefined: all rows.
  at::Tensor b_rows = {};
  /// Indices of rows of c, at most m, all different; requires `accumulate`. Row i of the product,
  /// bias included, is added to row c_rows[i] of c. Further rows of the product are dropped. c may
  /// be float32 if a and b are bfloat16.
  at::Tensor c_rows = {};
  at::Tensor c_weights = {};  ///< factor for each row in c_rows, in the dtype of c; undefined: 1
};

/// Writes c (m, n) = [c +] op(a) @ op(b). c must be row-major; a and b may have any strides.
///
/// On a CPU, float32 products run our kernel: AVX-512, AVX2 or scalar, chosen at run time. It is
/// blocked as in Goto and van de Geijn 2008. Bfloat16 products with `a_rows`, `b_rows` or `c_rows`
/// run it, too, if `multiplies_bfloat16_rows` says so. Other products go to ATen. Sums are float32.
/// The order of additions depends on the shape, not on the number of threads. Throws UserError on
/// mismatched shapes, dtypes or devices, naming both shapes.
void gemm_into(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
               const GemmOptions& options = {});

/// Returns true if our kernel multiplies bfloat16 matrices with `a_rows`, `b_rows` or `c_rows` on
/// this CPU. That needs AVX-512 and BF16 instructions, and no AMX. A product still goes to ATen if
/// a row along k has an odd size or stride.
bool multiplies_bfloat16_rows();

/// Arguments of one `gemm_into`.
struct GemmCall {
  at::Tensor c, a, b;
  GemmOptions options = {};
};
/// Computes all calls in one pass of the kernel: threads do not wait between products. Results
/// equal one `gemm_into` after another. Two calls may write to the same c only if both use
/// `c_rows`.
///
/// On a GPU, float32 and bfloat16 products become one grouped product of cuBLAS. Exceptions are
/// products with `c_rows`, and a build without our CUDA library (cuda_kernels.h).
void gemm_group(std::span<const GemmCall> calls);

/// Returns op(a) @ op(b) as a new matrix, computed as by `gemm_into`. Throws UserError if
/// `accumulate` is set.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const GemmOptions& options = {});

/// Returns the sums (columns) of the columns of x (rows, columns), in x's dtype. Sums are
/// accumulated in float32 or wider. Their order depends on the shape alone; the order of at::sum
/// depends on the number of threads.
at::Tensor column_sums(const at::Tensor& x);

}  // namespace dovetail::ops
