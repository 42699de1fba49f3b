#include "dovetail/ops/gemm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/gemm_cpu.h"
#include "dovetail/ops/gemm_gpu.h"
#include "dovetail/ops/gemm_product.h"
#include "dovetail/ops/rows_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

/// Adds the product's first rows, times their weights, to rows of c.
void scatter_add(const Product& p, const at::Tensor& product) {
  const at::Tensor &rows = p.options.c_rows, &weights = p.options.c_weights;
  if (!product.is_cpu() || p.c.scalar_type() != at::kFloat) {
    p.c.index_add_(0, rows, weights.defined() ? product * weights.unsqueeze(1) : product);
    return;
  }
  add_rows({.storage = storage_of(product),
            .rows = product.size(0),
            .width = product.size(1),
            .x = product.const_data_ptr(),
            .row = rows.const_data_ptr<int32_t>(),
            .weight = data_or_null(weights),
            .c = p.c.mutable_data_ptr<float>(),
            .ldc = p.c.stride(0)});
}

void sum_rows(const Product& p, const at::Tensor& a) {
  if (!p.options.row_sums.defined()) return;
  at::Tensor row_sums = p.options.row_sums;
  at::sum_out(row_sums, a, 1);
}

void multiply_by_aten(const Product& p, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor c = p.c;
  const at::Tensor& bias = p.options.bias;
  if (p.options.c_rows.defined()) {
    const at::Tensor product = bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
    scatter_add(p, product.narrow(0, 0, p.options.c_rows.size(0)));
  } else if (p.options.accumulate) {
    c.addmm_(a, b);
  } else if (bias.defined()) {
    at::addmm_out(c, bias, a, b);
  } else {
    at::mm_out(c, a, b);
  }
}

}  // namespace

void gemm_group(std::span<const GemmCall> calls) {
  const TraceSpan span("dovetail::gemm");
  const at::NoGradGuard no_grad;
  CpuProducts on_cpu;
  GroupedProducts on_gpu(calls);
  for (const GemmCall& call : calls) {
    const Product p(call);
    if (CpuProducts::takes_float32(p)) {
      on_cpu.add_float32(p);
      continue;
    }
    if (const auto pairs = CpuProducts::pairs_of(p)) {
      on_cpu.add_bfloat16(p, *pairs);
      if (p.options.row_sums.defined()) sum_rows(p, p.a.matrix());
      continue;
    }
    const at::Tensor a = p.a.matrix(), b = p.b.matrix();
    if (const auto grouped = on_gpu.describe(p, a, b)) {
      on_gpu.add(p, *grouped, a, b);
    } else {
      multiply_by_aten(p, a, b);
    }
    sum_rows(p, a);
  }
  on_gpu.run();
  on_cpu.run();
}

void gemm_into(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
               const GemmOptions& options) {
  const GemmCall call{c, a, b, options};
  gemm_group({&call, 1});
}

GemmType bfloat16_gemm_type(c10::Device device) {
  return device.is_cpu() && widens_bfloat16() ? GemmType::kFloat32 : GemmType::kBFloat16;
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

}  // namespace dovetail::ops
