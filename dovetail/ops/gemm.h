#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace dovetail::ops {

/// c (m, n) = [c +] op(a) @ op(b), where op(a) is (m, k) and op(b) is (k, n); op is the transpose
/// when asked.
///
/// float32 on CPU runs our kernel (AVX-512, AVX2 or scalar, chosen at run time; blocked as in Goto
/// and van de Geijn 2008), and so does bfloat16 as `multiplies_bfloat16_rows` says; the rest goes
/// to ATen. Any strides for c's batch-free two dimensions of a and b; c must be row-major. FP32
/// accumulation. The order of additions depends on the shape alone, never on the number of threads.
/// Throws UserError on mismatched shapes, dtypes or devices, naming both shapes.
///
/// With `a_rows` or `b_rows`, a or b is the matrix of those of its rows, which are read where they
/// lie. With `c_rows` the product's first rows are added to those rows of c, times `c_weights`, and
/// what rows it has beyond them is dropped; c may then be float32 while a and b are bfloat16. Row
/// numbers are int32 and not checked.
struct GemmOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  at::Tensor bias = {};  ///< (n), added to each row of c; not with `accumulate`
  at::Tensor row_sums =
      {};  ///< (m), contiguous: becomes the sums of op(a)'s rows, taken while they are packed
  at::Tensor a_rows = {}, b_rows = {};
  at::Tensor c_rows = {};  ///< (m or fewer), all different; needs `accumulate`, and `bias` is then
                           ///< added to the product
  at::Tensor c_weights = {};  ///< one for each of c_rows, of c's dtype; undefined: 1
};
void gemm_into(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
               const GemmOptions& options = {});

/// Whether products of bfloat16 rows (`a_rows`, `b_rows` or `c_rows`) on the CPU run our kernel: on
/// AVX-512 with BF16 but without AMX. They go to ATen all the same where a row that is summed over
/// has an odd size or stride.
bool multiplies_bfloat16_rows();

/// What `gemm_into` takes.
struct GemmCall {
  at::Tensor c, a, b;
  GemmOptions options = {};
};
/// The results of one `gemm_into` after another, in one pass of the kernel: threads go from one
/// product to the next without waiting for each other. Calls may share a c only by `c_rows`.
/// float32 and bfloat16 on a GPU go to cuBLAS as one grouped product where the library of
/// cuda_kernels.h has it, `c_rows` excepted.
void gemm_group(std::span<const GemmCall> calls);

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const GemmOptions& options = {});

/// Sums (columns) of the columns of x (rows, columns), in x's dtype, added in float32 or wider.
/// Their order depends on the shape alone; the order of at::sum depends on the number of threads.
at::Tensor column_sums(const at::Tensor& x);

}  // namespace dovetail::ops
