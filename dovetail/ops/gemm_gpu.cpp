#include "dovetail/ops/gemm_gpu.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

constexpr uintptr_t kAlignment = 16;

/// Returns nullopt if no stride of x is 1.
std::optional<GroupedProduct::Operand> describe_operand(const at::Tensor& x) {
  const bool rows = x.stride(1) == 1 || x.size(1) == 1,
             columns = x.stride(0) == 1 || x.size(0) == 1;
  if (!rows && !columns) return std::nullopt;
  // A dimension of one element may have any stride. cuBLAS expects at least a line's elements.
  return GroupedProduct::Operand{
      .data = x.const_data_ptr(),
      .stride = rows ? std::max(x.stride(0), x.size(1)) : std::max(x.stride(1), x.size(0)),
      .transposed = !rows};
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kAlignment == 0; }

}  // namespace

std::optional<GroupedProduct> describe_product(const at::Tensor& c, const at::Tensor& a,
                                               const at::Tensor& b, bool accumulate) {
  const auto left = describe_operand(a), right = describe_operand(b);
  if (!left || !right) return std::nullopt;
  GroupedProduct out;
  out.a = *left;
  out.b = *right;
  out.m = c.size(0);
  out.n = c.size(1);
  out.k = a.size(1);
  out.c = c.mutable_data_ptr();
  out.c_stride = std::max(c.stride(0), c.size(1));
  out.accumulate = accumulate;
  const bool fits = c.scalar_type() != at::kBFloat16 ||
                    (aligned(out.a.data) && aligned(out.b.data) && aligned(out.c));
  return fits ? std::optional(out) : std::nullopt;
}

GroupedProducts::GroupedProducts(std::span<const GemmCall> calls) {
  if (calls.size() < 2 || !calls[0].c.is_cuda() || !kernel_enabled(Kernel::kGemm)) return;
  dtype_ = calls[0].c.scalar_type();
  if (dtype_ == at::kFloat || dtype_ == at::kBFloat16) kernels_ = cuda_kernels();
}

std::optional<GroupedProduct> GroupedProducts::describe(const Product& p, const at::Tensor& a,
                                                        const at::Tensor& b) const {
  if (kernels_ == nullptr || p.empty() || p.c.scalar_type() != dtype_ || p.options.c_rows.defined())
    return std::nullopt;
  return describe_product(p.c, a, b, p.options.accumulate || p.options.bias.defined());
}

void GroupedProducts::add(const Product& p, const GroupedProduct& grouped, const at::Tensor& a,
                          const at::Tensor& b) {
  if (p.options.bias.defined()) p.c.copy_(p.options.bias.expand_as(p.c));
  products_.push_back(grouped);
  operands_.insert(operands_.end(), {a, b});
}

void GroupedProducts::run() const {
  if (!products_.empty()) kernels_->grouped_products(storage_of(operands_[0]), products_);
}

}  // namespace dovetail::ops
