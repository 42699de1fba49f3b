#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <span>

#include "dovetail/base/machine.h"

namespace dovetail::ops {

/// Options of the product c (m, n) = [c +] op(a) @ op(b), where op(a) is (m, k) and op(b) is (k,
/// n).
///
/// `a_rows` and `b_rows` select rows of a and b to use in the product. `c_rows` selects the rows of
/// c to which rows of the product are added. Row indices are int32 and are not checked.
struct GemmOptions {
  bool transpose_a = false;  ///< op(a) is the transpose of a
  bool transpose_b = false;  ///< op(b) is the transpose of b
  bool accumulate = false;   ///< add the product to c
  /// Vector (n) that is added to each row of the product. It cannot be combined with `accumulate`,
  /// unless `c_rows` is defined.
  at::Tensor bias = {};
  /// Vector (m), contiguous, that receives the sum of each row of op(a). The float32 CPU kernel
  /// computes the sums while it packs op(a), so op(a) is not read again.
  at::Tensor row_sums = {};
  /// Indices of the rows of a to use, read in place. Undefined: all rows.
  at::Tensor a_rows = {};
  /// Indices of the rows of b to use, read in place. Undefined: all rows.
  at::Tensor b_rows = {};
  /// Indices of rows of c: at most m, all different. Row i of the product, bias included, is added
  /// to row c_rows[i] of c. If there are fewer than m indices, the further rows of the product are
  /// dropped. Requires `accumulate`. c may be float32 if a and b are bfloat16.
  at::Tensor c_rows = {};
  at::Tensor c_weights = {};  ///< factor of each added row, in the dtype of c; undefined: 1
};

/// Computes c (m, n) = [c +] op(a) @ op(b). c must be row-major; a and b may have any strides.
///
/// On a CPU, our kernel computes these products:
/// - float32 products,
/// - bfloat16 products, if `widens_bfloat16()` is true and `c_rows` does not choose rows of a
///   bfloat16 c,
/// - bfloat16 products with `a_rows`, `b_rows` or `c_rows`, if
///   `multiplies_bfloat16_rows()` is true.
///
/// ATen computes all others. Our kernel uses AVX-512, AVX2 or scalar code, chosen at run time. It
/// is blocked as in Goto and van de Geijn 2008. Sums are float32. A bfloat16 result is rounded
/// once. The order of additions depends on the shape, not on the number of threads. Throws
/// UserError on mismatched shapes, dtypes or devices, naming both shapes.
void gemm_into(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
               const GemmOptions& options = {});

/// Returns true if our kernel computes bfloat16 products in float32. This is so on a CPU without
/// AVX-512 or without BF16 instructions: ATen has no fast bfloat16 products there.
bool widens_bfloat16();

/// Returns the type in which bfloat16 products are computed on `device`: float32 on a CPU where
/// `widens_bfloat16()` is true, else bfloat16.
GemmType bfloat16_gemm_type(c10::Device device);

/// Returns true if our kernel computes bfloat16 products with `a_rows`, `b_rows` or `c_rows` on
/// this CPU. The CPU must have AVX-512 and BF16 instructions, and no AMX. A product still goes to
/// ATen if a row along k has an odd size or stride.
bool multiplies_bfloat16_rows();

/// Arguments of one call of `gemm_into`.
struct GemmCall {
  at::Tensor c, a, b;
  GemmOptions options = {};
};
/// Computes all calls in one pass of the kernel, in which threads do not wait between products.
/// Results are the same as from one `gemm_into` after another. Two calls may write to the same c
/// only if both use `c_rows`.
///
/// On a GPU, float32 and bfloat16 products become one grouped product of cuBLAS. Products with
/// `c_rows` are computed one by one by ATen. So are all products in a build without our CUDA
/// library (cuda_kernels.h).
void gemm_group(std::span<const GemmCall> calls);

/// Returns op(a) @ op(b) as a new matrix, computed as by `gemm_into`. Throws UserError if
/// `accumulate` is set.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const GemmOptions& options = {});

/// Returns the sums (columns) of the columns of x (rows, columns), in x's dtype. Sums are
/// accumulated in float32 or wider. The order of additions depends on the shape alone. (In at::sum,
/// it depends on the number of threads.)
at::Tensor column_sums(const at::Tensor& x);

}  // namespace dovetail::ops
