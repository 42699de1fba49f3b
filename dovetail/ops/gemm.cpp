#include "dovetail/ops/gemm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <optional>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/gemm_gpu.h"
#include "dovetail/ops/gemm_simd.h"
#include "dovetail/ops/rows_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail {

namespace {

void check_vector(const char* name, const at::Tensor& vector, int64_t size,
                  const at::Tensor& like) {
  user_check(!vector.defined() ||
                 (vector.dim() == 1 && vector.size(0) == size && vector.is_contiguous() &&
                  vector.scalar_type() == like.scalar_type() && vector.device() == like.device()),
             "gemm: {} must be [{}], contiguous, of the dtype and device of {}; it is {}", name,
             size, describe(like), describe(vector));
}

void check_rows(const char* name, const at::Tensor& rows, const at::Tensor& c) {
  user_check(!rows.defined() || (rows.dim() == 1 && rows.is_contiguous() &&
                                 rows.scalar_type() == at::kInt && rows.device() == c.device()),
             "gemm: {} must be one contiguous dimension of int32 on the device of c, which is {}; "
             "it is {}",
             name, describe(c), describe(rows));
}

/// An operand as it is stored, and as it takes part.
struct Operand {
  at::Tensor stored;
  at::Tensor rows;  ///< of `stored`; undefined: all
  bool transpose;

  int64_t stored_rows() const { return rows.defined() ? rows.size(0) : stored.size(0); }
  int64_t height() const { return transpose ? stored.size(1) : stored_rows(); }
  int64_t width() const { return transpose ? stored_rows() : stored.size(1); }
  at::Tensor matrix() const {
    const at::Tensor chosen = rows.defined() ? stored.index_select(0, rows) : stored;
    return transpose ? chosen.t() : chosen;
  }
};

void check_operands(const at::Tensor& c, const Operand& a, const Operand& b, bool c_rows) {
  user_check(a.width() == b.height(),
             "gemm: the inner sizes differ: op(a) is {} x {} (a {}), op(b) is {} x {} (b {})",
             a.height(), a.width(), describe(a.stored), b.height(), b.width(), describe(b.stored));
  user_check(c.dim() == 2 && (c_rows || c.size(0) == a.height()) && c.size(1) == b.width(),
             "gemm: c must be [{}, {}] for a {} and b {}, but is {}", a.height(), b.width(),
             describe(a.stored), describe(b.stored), describe(c));
  const bool same_dtype =
      a.stored.scalar_type() == c.scalar_type() ||
      (c_rows && a.stored.scalar_type() == at::kBFloat16 && c.scalar_type() == at::kFloat);
  user_check(same_dtype && a.stored.scalar_type() == b.stored.scalar_type() &&
                 a.stored.device() == b.stored.device() && a.stored.device() == c.device(),
             "gemm: a, b and c must share dtype and device: a is {}, b is {}, c is {}",
             describe(a.stored), describe(b.stored), describe(c));
}

void check_options(const at::Tensor& c, const Operand& a, const Operand& b,
                   const GemmOptions& options) {
  check_rows("a_rows", options.a_rows, c);
  check_rows("b_rows", options.b_rows, c);
  check_rows("c_rows", options.c_rows, c);
  const bool c_rows = options.c_rows.defined();
  user_check(!c_rows || (options.accumulate && options.c_rows.size(0) <= a.height()),
             "gemm: c_rows needs accumulate and at most as many rows of c as the product's {}",
             a.height());
  user_check(c_rows || !options.c_weights.defined(), "gemm: c_weights needs c_rows");
  check_operands(c, a, b, c_rows);
  check_vector("bias", options.bias, b.width(), b.stored);
  check_vector("row_sums", options.row_sums, a.height(), a.stored);
  if (c_rows) check_vector("c_weights", options.c_weights, options.c_rows.size(0), c);
  user_check(!options.accumulate || !options.bias.defined() || c_rows,
             "gemm: bias and accumulate exclude each other without c_rows");
  user_check(b.width() <= 1 || c.stride(1) == 1,
             "gemm: the rows of c must be contiguous, its strides are [{}, {}]", c.stride(0),
             c.stride(1));
}

/// A view of `x` for the kernel, which needs one stride of 1; `copy` keeps the copy that is made
/// when neither is.
MatrixView matrix_view(const at::Tensor& x, at::Tensor& copy) {
  const bool fits = (x.stride(1) == 1 || x.size(1) == 1) || (x.stride(0) == 1 || x.size(0) == 1);
  copy = fits ? x : x.contiguous();
  // A dimension of one element may have any stride; the kernel is told the one that lets it see
  // contiguous rows or columns.
  const bool rows = copy.stride(1) == 1 || copy.size(1) == 1;
  return {copy.const_data_ptr<float>(), rows ? copy.stride(0) : 1, rows ? 1 : copy.stride(1)};
}

/// The same for an operand; rows are read where they lie if these are contiguous and of more than
/// one element.
MatrixView matrix_view(const Operand& x, at::Tensor& copy) {
  const bool in_place = x.rows.defined() && x.stored.stride(1) == 1 && x.stored.stride(0) > 1;
  if (!in_place) return matrix_view(x.matrix(), copy);
  const int64_t stride = x.stored.stride(0);
  return {x.stored.const_data_ptr<float>(), x.transpose ? 1 : stride, x.transpose ? stride : 1,
          x.rows.const_data_ptr<int32_t>()};
}

/// A call as the kernel takes it, with the copies that it reads, and what becomes of it in the end.
struct KernelCall {
  GemmProblem problem;
  at::Tensor a_copy, b_copy, bias_copy;
  at::Tensor sum, c;  ///< where defined, c becomes this sum
};

KernelCall kernel_call(const GemmCall& call, const Operand& a, const Operand& b) {
  const auto &bias = call.options.bias, &row_sums = call.options.row_sums,
             &c_rows = call.options.c_rows;
  KernelCall out;
  out.problem = {.m = c_rows.defined() ? c_rows.size(0) : a.height(),
                 .n = b.width(),
                 .k = a.width(),
                 .a = matrix_view(a, out.a_copy),
                 .b = matrix_view(b, out.b_copy),
                 .c = call.c.mutable_data_ptr<float>(),
                 .ldc = call.c.stride(0),
                 .bias = data_or_null(bias),
                 .accumulate = call.options.accumulate,
                 .row_sums = row_sums.defined() ? row_sums.mutable_data_ptr<float>() : nullptr,
                 .c_row = c_rows.defined() ? c_rows.const_data_ptr<int32_t>() : nullptr,
                 .c_weight = data_or_null(call.options.c_weights)};
  return out;
}

/// An operand in pairs of terms: these are rows, or aligned neighbours in a row; none where they
/// are neither.
std::optional<MatrixView> pair_view(const Operand& x, bool left) {
  const at::Tensor& stored = x.stored;
  const int32_t* line = x.rows.defined() ? x.rows.const_data_ptr<int32_t>() : nullptr;
  const int64_t stride = stored.stride(0);
  if (stored.stride(1) != 1 || stride <= 1) return std::nullopt;
  if (x.transpose == left) {  // terms are rows
    return MatrixView{.data = nullptr,
                      .row_stride = left ? 1 : stride,
                      .column_stride = left ? stride : 1,
                      .line = line,
                      .halves = static_cast<const uint16_t*>(stored.const_data_ptr()),
                      .terms = x.stored_rows()};
  }
  const auto* data = static_cast<const float*>(stored.const_data_ptr());
  if (stored.size(1) % 2 != 0 || stride % 2 != 0 ||
      reinterpret_cast<uintptr_t>(data) % sizeof(float) != 0 || stride == 2)
    return std::nullopt;
  return MatrixView{.data = data,
                    .row_stride = left ? stride / 2 : 1,
                    .column_stride = left ? 1 : stride / 2,
                    .line = line};
}

/// Whether the kernel can do a call in bfloat16, which is then in `out`.
bool pair_call(const GemmCall& call, const Operand& a, const Operand& b, KernelCall& out) {
  const GemmOptions& options = call.options;
  const bool rows =
      options.a_rows.defined() || options.b_rows.defined() || options.c_rows.defined();
  const bool sums = options.c_rows.defined() && call.c.scalar_type() == at::kFloat;
  if (!rows || !multiplies_bfloat16_rows() || a.stored.scalar_type() != at::kBFloat16 ||
      (options.accumulate && !sums))
    return false;
  const auto left = pair_view(a, true), right = pair_view(b, false);
  if (!left || !right) return false;
  if (options.bias.defined()) out.bias_copy = options.bias.to(at::kFloat);
  const int64_t pairs = (a.width() + 1) / 2;
  if (!sums && pairs > kBFloat16Pairs) {
    out.c = call.c;
    out.sum = at::empty(call.c.sizes(), call.c.options().dtype(at::kFloat));
  }
  const at::Tensor& c = out.sum.defined() ? out.sum : call.c;
  const bool halves = c.scalar_type() == at::kBFloat16;
  out.problem = {
      .m = options.c_rows.defined() ? options.c_rows.size(0) : a.height(),
      .n = b.width(),
      .k = pairs,
      .a = *left,
      .b = *right,
      .c = halves ? nullptr : c.mutable_data_ptr<float>(),
      .ldc = c.stride(0),
      .bias = data_or_null(out.bias_copy),
      .accumulate = options.accumulate,
      .row_sums = nullptr,
      .c_row = options.c_rows.defined() ? options.c_rows.const_data_ptr<int32_t>() : nullptr,
      .c_weight = data_or_null(options.c_weights),
      .pairs = true,
      .c_halves = halves ? static_cast<uint16_t*>(c.mutable_data_ptr()) : nullptr};
  return true;
}

/// Rows of `product` to c_rows of c.
void add_to_rows(at::Tensor& c, const at::Tensor& product, const GemmOptions& options) {
  const at::Tensor& weights = options.c_weights;
  if (!product.is_cpu() || c.scalar_type() != at::kFloat) {
    c.index_add_(0, options.c_rows, weights.defined() ? product * weights.unsqueeze(1) : product);
    return;
  }
  add_rows({.storage = storage_of(product),
            .rows = product.size(0),
            .width = product.size(1),
            .x = product.const_data_ptr(),
            .row = options.c_rows.const_data_ptr<int32_t>(),
            .weight = data_or_null(weights),
            .c = c.mutable_data_ptr<float>(),
            .ldc = c.stride(0)});
}

void sum_rows(const at::Tensor& a, const GemmOptions& options) {
  if (!options.row_sums.defined()) return;
  at::Tensor row_sums = options.row_sums;
  at::sum_out(row_sums, a, 1);
}

void gemm_by_aten(const GemmCall& call, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor c = call.c;
  const GemmOptions& options = call.options;
  if (options.c_rows.defined()) {
    const at::Tensor product =
        options.bias.defined() ? at::addmm(options.bias, a, b) : at::mm(a, b);
    add_to_rows(c, product.narrow(0, 0, options.c_rows.size(0)), options);
  } else if (options.accumulate) {
    c.addmm_(a, b);
  } else if (options.bias.defined()) {
    at::addmm_out(c, options.bias, a, b);
  } else {
    at::mm_out(c, a, b);
  }
  sum_rows(a, options);
}

}  // namespace

bool multiplies_bfloat16_rows() {
  static const bool amx = machine().simd == "AMX BF16";  // which oneDNN uses, and is faster
  return simd_level() == SimdLevel::kAvx512 && !amx && kernel_enabled(Kernel::kGemm) &&
         multiplies_pairs();
}

void gemm_group(std::span<const GemmCall> calls) {
  const TraceSpan span("dovetail::gemm");
  const at::NoGradGuard no_grad;
  std::vector<KernelCall> kernel_calls;
  kernel_calls.reserve(calls.size());
  GroupedProducts on_gpu(calls);
  for (const GemmCall& call : calls) {
    const auto& [c, a, b, options] = call;
    user_check(a.dim() == 2 && b.dim() == 2, "gemm: a and b must be matrices, a is {}, b is {}",
               describe(a), describe(b));
    const Operand left{a, options.a_rows, options.transpose_a},
        right{b, options.b_rows, options.transpose_b};
    check_options(c, left, right, options);
    const bool empty = c.numel() == 0 || left.height() == 0 || left.width() == 0;
    const bool kernel = use_kernel(Kernel::kGemm, c) && c.is_cpu() && !empty;
    KernelCall in_pairs;
    if (kernel && a.scalar_type() == at::kFloat) {
      kernel_calls.push_back(kernel_call(call, left, right));
    } else if (kernel && pair_call(call, left, right, in_pairs)) {
      kernel_calls.push_back(std::move(in_pairs));
      if (options.row_sums.defined()) sum_rows(left.matrix(), options);
    } else if (const at::Tensor l = left.matrix(), r = right.matrix();
               !empty && on_gpu.take(call, l, r)) {
      sum_rows(l, options);
    } else {
      gemm_by_aten(call, l, r);
    }
  }
  on_gpu.run();
  std::vector<GemmProblem> problems;
  problems.reserve(kernel_calls.size());
  for (const KernelCall& call : kernel_calls) problems.push_back(call.problem);
  if (!problems.empty()) gemm_float32(problems);
  for (KernelCall& call : kernel_calls) {
    if (call.sum.defined()) call.c.copy_(call.sum);
  }
}

void gemm_into(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
               const GemmOptions& options) {
  const GemmCall call{c, a, b, options};
  gemm_group({&call, 1});
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const GemmOptions& options) {
  user_check(a.dim() == 2 && b.dim() == 2, "gemm: a and b must be matrices, a is {}, b is {}",
             describe(a), describe(b));
  user_check(!options.accumulate, "gemm: accumulate needs a result to add to; call gemm_into");
  const Operand left{a, options.a_rows, options.transpose_a},
      right{b, options.b_rows, options.transpose_b};
  at::Tensor c = at::empty({left.height(), right.width()}, a.options());
  gemm_into(c, a, b, options);
  return c;
}

}  // namespace dovetail
