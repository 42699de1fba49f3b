#include "dovetail/ops/gemm_gpu.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dovetail/ops/simd_level.h"

namespace dovetail {

namespace {

constexpr uintptr_t kAlignment = 16;

/// False where no stride of x is 1.
bool describe_operand(const at::Tensor& x, GroupedProduct::Operand& out) {
  const bool rows = x.stride(1) == 1 || x.size(1) == 1,
             columns = x.stride(0) == 1 || x.size(0) == 1;
  if (!rows && !columns) return false;
  // A dimension of one element may have any stride: cuBLAS wants no less than a line's elements.
  out = {.data = x.const_data_ptr(),
         .stride = rows ? std::max(x.stride(0), x.size(1)) : std::max(x.stride(1), x.size(0)),
         .transposed = !rows};
  return true;
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kAlignment == 0; }

}  // namespace

bool describe_product(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                      bool accumulate, GroupedProduct& out) {
  if (!describe_operand(a, out.a) || !describe_operand(b, out.b)) return false;
  out.m = c.size(0);
  out.n = c.size(1);
  out.k = a.size(1);
  out.c = c.mutable_data_ptr();
  out.c_stride = std::max(c.stride(0), c.size(1));
  out.accumulate = accumulate;
  return c.scalar_type() != at::kBFloat16 ||
         (aligned(out.a.data) && aligned(out.b.data) && aligned(out.c));
}

GroupedProducts::GroupedProducts(std::span<const GemmCall> calls) {
  if (calls.size() < 2 || !calls[0].c.is_cuda() || !kernel_enabled(Kernel::kGemm)) return;
  dtype_ = calls[0].c.scalar_type();
  if (dtype_ != at::kFloat && dtype_ != at::kBFloat16) return;
  kernels_ = cuda_kernels();
}

bool GroupedProducts::take(const GemmCall& call, const at::Tensor& a, const at::Tensor& b) {
  const GemmOptions& options = call.options;
  if (kernels_ == nullptr || call.c.scalar_type() != dtype_ || options.c_rows.defined())
    return false;
  GroupedProduct product;
  if (!describe_product(call.c, a, b, options.accumulate || options.bias.defined(), product))
    return false;
  if (options.bias.defined()) at::Tensor(call.c).copy_(options.bias.expand_as(call.c));
  products_.push_back(product);
  operands_.insert(operands_.end(), {a, b});
  return true;
}

void GroupedProducts::run() const {
  if (!products_.empty()) kernels_->grouped_products(storage_of(operands_[0]), products_);
}

}  // namespace dovetail
