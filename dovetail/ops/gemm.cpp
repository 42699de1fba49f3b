#include "dovetail/ops/gemm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/gemm_simd.h"

namespace dovetail {

namespace {

void check_operands(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, int64_t m, int64_t n, int64_t ka,
                    int64_t kb) {
  user_check(ka == kb, "gemm: the inner sizes differ: op(a) is {} x {} (a {}), op(b) is {} x {} (b {})", m, ka,
             describe(a), kb, n, describe(b));
  user_check(c.dim() == 2 && c.size(0) == m && c.size(1) == n, "gemm: c must be [{}, {}] for a {} and b {}, but is {}",
             m, n, describe(a), describe(b), describe(c));
  user_check(a.scalar_type() == b.scalar_type() && a.scalar_type() == c.scalar_type() && a.device() == b.device() &&
                 a.device() == c.device(),
             "gemm: a, b and c must share dtype and device: a is {}, b is {}, c is {}", describe(a), describe(b),
             describe(c));
}

/// A view of `x` for the kernel, which needs one stride of 1; `copy` keeps the copy that is made when neither is.
MatrixView matrix_view(const at::Tensor& x, at::Tensor& copy) {
  const bool fits = (x.stride(1) == 1 || x.size(1) == 1) || (x.stride(0) == 1 || x.size(0) == 1);
  copy = fits ? x : x.contiguous();
  // A dimension of one element may have any stride; the kernel is told the one that lets it see contiguous rows or
  // columns.
  const bool rows = copy.stride(1) == 1 || copy.size(1) == 1;
  return {copy.const_data_ptr<float>(), rows ? copy.stride(0) : 1, rows ? 1 : copy.stride(1)};
}

void gemm_by_kernel(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool accumulate) {
  at::Tensor a_copy, b_copy;
  const at::Tensor bias_row = bias.defined() ? bias.contiguous() : bias;
  gemm_float32({.m = a.size(0),
                .n = b.size(1),
                .k = a.size(1),
                .a = matrix_view(a, a_copy),
                .b = matrix_view(b, b_copy),
                .c = c.mutable_data_ptr<float>(),
                .ldc = c.stride(0),
                .bias = bias.defined() ? bias_row.const_data_ptr<float>() : nullptr,
                .accumulate = accumulate});
}

}  // namespace

void gemm_into(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, GemmOptions options) {
  user_check(a.dim() == 2 && b.dim() == 2, "gemm: a and b must be matrices, a is {}, b is {}", describe(a),
             describe(b));
  const at::Tensor left = options.transpose_a ? a.t() : a, right = options.transpose_b ? b.t() : b;
  const int64_t m = left.size(0), k = left.size(1), n = right.size(1);
  check_operands(c, a, b, m, n, k, right.size(0));
  const TraceSpan span("dovetail::gemm");
  const at::NoGradGuard no_grad;
  user_check(n <= 1 || c.stride(1) == 1, "gemm: the rows of c must be contiguous, its strides are [{}, {}]",
             c.stride(0), c.stride(1));
  if (c.numel() == 0) return;
  if (k == 0) {
    if (!options.accumulate) c.zero_();
  } else if (use_kernel(Kernel::kGemm, c) && c.scalar_type() == at::kFloat) {
    gemm_by_kernel(c, left, right, {}, options.accumulate);
  } else if (options.accumulate) {
    c.addmm_(left, right);
  } else {
    at::mm_out(c, left, right);
  }
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, GemmOptions options) {
  user_check(a.dim() == 2 && b.dim() == 2, "gemm: a and b must be matrices, a is {}, b is {}", describe(a),
             describe(b));
  user_check(!options.accumulate, "gemm: accumulate needs a result to add to; call gemm_into");
  at::Tensor c = at::empty({a.size(options.transpose_a ? 1 : 0), b.size(options.transpose_b ? 0 : 1)}, a.options());
  gemm_into(c, a, b, options);
  return c;
}

}  // namespace dovetail
