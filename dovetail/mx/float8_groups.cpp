#include "dovetail/mx/float8_groups.h"

#include <ATen/ATen.h>

#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/mx/codec.h"
#include "dovetail/mx/float8.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

constexpr int64_t kMagnitudeBits = 0x7fffffff, kExponentBits = 0x7f800000;

/// Returns the largest magnitude of the counted rows of each group, (groups) float32. Bits of
/// magnitudes have the order of the magnitudes, with NaN as the largest.
at::Tensor group_amax(const at::Tensor& x, const at::Tensor& group, const at::Tensor& counted,
                      int64_t groups) {
  const auto [least, most] = at::aminmax(x, 1);
  at::Tensor magnitudes = at::maximum(most, least.neg()).to(at::kFloat);
  if (counted.defined()) magnitudes = at::where(counted, magnitudes, 0.0);
  const at::Tensor numbers = magnitudes.view(at::kInt).bitwise_and(kMagnitudeBits);
  return at::zeros({groups}, numbers.options())
      .scatter_reduce(0, group, numbers, "amax")
      .view(at::kFloat);
}

}  // namespace

Float8Factors float8_factors(const at::Tensor& most, const at::Tensor& amax, Format format,
                             bool power_of_two) {
  constexpr double kSmallestAmax = 0x1p-80, kNan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor finite = at::isfinite(most);
  at::Tensor factor =
      at::full_like(most, largest_number(format)).div(amax.clamp_min(kSmallestAmax));
  if (power_of_two) factor = factor.view(at::kInt).bitwise_and(kExponentBits).view(at::kFloat);
  factor = at::where(finite, factor, 0.0);
  return {.factor = factor, .scale = at::where(finite, factor.reciprocal(), kNan)};
}

at::Tensor float8_elements(const at::Tensor& x, const at::Tensor& factor, Format format) {
  const double largest = largest_number(format);
  const at::Tensor scaled = x.mul(factor).clamp_(-largest, largest);
  return at::where(factor == 0, 0.0, scaled).to(float8_type(format));
}

Float8Groups quantize_float8_groups(const at::Tensor& x_in, const at::Tensor& group,
                                    const at::Tensor& counted, int64_t groups, Format format,
                                    bool power_of_two) {
  const at::Tensor x = x_in.detach();
  DOVETAIL_CHECK(x.dim() == 2 && group.dim() == 1 && group.size(0) == x.size(0) &&
                     (!counted.defined() || counted.sizes() == group.sizes()),
                 "rows of {} in groups {}", ops::describe(x), ops::describe(group));
  const at::Tensor most = group_amax(x, group, counted, groups);
  const auto [factor, scale] = float8_factors(most, most, format, power_of_two);
  return {.codes = float8_elements(x, factor.index_select(0, group).unsqueeze(1), format),
          .scales = scale};
}

}  // namespace dovetail::mx
