#include "dovetail/moe/device_products.h"

#include <ATen/ATen.h>

namespace dovetail::moe {

namespace {

constexpr int64_t kSummed = 8;  ///< columns of ones: 16 bytes of bfloat16

}  // namespace

at::Tensor grouped_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends) {
  if (!a.is_meta()) return at::_grouped_mm(a, b, ends);
  if (b.dim() == 3) return at::empty({a.size(0), b.size(2)}, a.options());
  return at::empty({ends.size(0), a.size(0), b.size(1)}, a.options());
}

at::Tensor expert_of_place(const at::Tensor& ends, int64_t places) {
  const at::Tensor place = at::arange(places, ends.options());
  return at::searchsorted(ends, place, /*out_int32=*/false, /*right=*/true)
      .clamp_max(ends.size(0) - 1);
}

at::Tensor sum_by_expert(const at::Tensor& dy, const at::Tensor& ends) {
  const at::Tensor ones = at::ones({dy.size(0), kSummed}, dy.options());
  return grouped_products(ones.t(), dy, ends).select(1, 0);
}

}  // namespace dovetail::moe
