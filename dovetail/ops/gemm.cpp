#include "dovetail/ops/gemm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/gemm_simd.h"

namespace dovetail {

namespace {

void check_vector(const char* name, const at::Tensor& vector, int64_t size, const at::Tensor& c) {
  user_check(!vector.defined() || (vector.dim() == 1 && vector.size(0) == size && vector.is_contiguous() &&
                                   vector.scalar_type() == c.scalar_type() && vector.device() == c.device()),
             "gemm: {} must be [{}], contiguous, of the dtype and device of c, which is {}; it is {}", name, size,
             describe(c), describe(vector));
}

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

void gemm_by_kernel(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const GemmOptions& options) {
  at::Tensor a_copy, b_copy;
  const auto &bias = options.bias, &row_sums = options.row_sums;
  gemm_float32({.m = a.size(0),
                .n = b.size(1),
                .k = a.size(1),
                .a = matrix_view(a, a_copy),
                .b = matrix_view(b, b_copy),
                .c = c.mutable_data_ptr<float>(),
                .ldc = c.stride(0),
                .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                .accumulate = options.accumulate,
                .row_sums = row_sums.defined() ? row_sums.mutable_data_ptr<float>() : nullptr});
}

void gemm_by_aten(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const GemmOptions& options) {
  if (options.accumulate) {
    c.addmm_(a, b);
  } else if (options.bias.defined()) {
    at::addmm_out(c, options.bias, a, b);
  } else {
    at::mm_out(c, a, b);
  }
  if (options.row_sums.defined()) {
    at::Tensor row_sums = options.row_sums;
    at::sum_out(row_sums, a, 1);
  }
}

}  // namespace

void gemm_into(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const GemmOptions& options) {
  user_check(a.dim() == 2 && b.dim() == 2, "gemm: a and b must be matrices, a is {}, b is {}", describe(a),
             describe(b));
  const at::Tensor left = options.transpose_a ? a.t() : a, right = options.transpose_b ? b.t() : b;
  const int64_t m = left.size(0), k = left.size(1), n = right.size(1);
  check_operands(c, a, b, m, n, k, right.size(0));
  check_vector("bias", options.bias, n, c);
  check_vector("row_sums", options.row_sums, m, c);
  user_check(!options.accumulate || !options.bias.defined(), "gemm: bias and accumulate exclude each other");
  user_check(n <= 1 || c.stride(1) == 1, "gemm: the rows of c must be contiguous, its strides are [{}, {}]",
             c.stride(0), c.stride(1));
  const TraceSpan span("dovetail::gemm");
  const at::NoGradGuard no_grad;
  if (use_kernel(Kernel::kGemm, c) && c.scalar_type() == at::kFloat && c.numel() > 0 && k > 0) {
    gemm_by_kernel(c, left, right, options);
  } else {
    gemm_by_aten(c, left, right, options);
  }
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const GemmOptions& options) {
  user_check(a.dim() == 2 && b.dim() == 2, "gemm: a and b must be matrices, a is {}, b is {}", describe(a),
             describe(b));
  user_check(!options.accumulate, "gemm: accumulate needs a result to add to; call gemm_into");
  at::Tensor c = at::empty({a.size(options.transpose_a ? 1 : 0), b.size(options.transpose_b ? 0 : 1)}, a.options());
  gemm_into(c, a, b, options);
  return c;
}

}  // namespace dovetail
