#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail {

/// c (m, n) = [c +] op(a) @ op(b), where op(a) is (m, k) and op(b) is (k, n); op is the transpose when asked.
///
/// float32 on CPU runs our kernel (AVX-512, AVX2 or scalar, chosen at run time; blocked as in Goto and van de Geijn
/// 2008); bfloat16 on CPU and everything on CUDA goes to ATen. Any strides for c's batch-free two dimensions of a and
/// b; c must be row-major. FP32 accumulation. The order of additions depends on the shape alone, never on the number of
/// threads. Throws UserError on mismatched shapes, dtypes or devices, naming both shapes.
struct GemmOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  at::Tensor bias = {};      ///< (n), added to each row of c; not with `accumulate`
  at::Tensor row_sums = {};  ///< (m), contiguous: becomes the sums of op(a)'s rows, taken while they are packed
};
void gemm_into(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const GemmOptions& options = {});
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const GemmOptions& options = {});

}  // namespace dovetail
