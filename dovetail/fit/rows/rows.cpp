#include "dovetail/fit/rows/rows.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::fit {

const at::Tensor& check_rows(const char* who, const at::Tensor& x) {
  user_check(
      x.dim() == 2 && x.scalar_type() == at::kFloat && x.device().is_cpu() && x.is_contiguous(),
      "{}: x must be a contiguous float32 matrix on the CPU, but is {}", who, ops::describe(x));
  user_check(x.size(0) > 0 && x.size(1) > 0,
             "{}: x has {} rows and {} columns; both must be at least 1", who, x.size(0),
             x.size(1));
  return x;
}

at::Tensor near_point(const at::Tensor& x) {
  constexpr int64_t kRows = 4096;
  const at::Tensor some = x.slice(0, 0, x.size(0), std::max<int64_t>(1, x.size(0) / kRows));
  return some.to(at::kDouble).mean(0).to(at::kFloat);
}

void refuse_values(const char* who, const at::Tensor& x) {
  constexpr int64_t kPiece = 16384;
  for (int64_t begin = 0; begin < x.size(0); begin += kPiece) {
    const at::Tensor part = x.slice(0, begin, std::min(begin + kPiece, x.size(0)));
    const at::Tensor bad = at::isfinite(part).logical_not().nonzero();
    if (bad.numel() == 0) continue;
    throw UserError(fmt::format("{}: {} in row {}, column {} of x", who,
                                part[bad[0][0]][bad[0][1]].item<float>(),
                                begin + bad[0][0].item<int64_t>(), bad[0][1].item<int64_t>()),
                    "leave such rows out, or put numbers in their place");
  }
  throw UserError(
      fmt::format("{}: the values are too large: the mean of a column is not finite in float32",
                  who),
      "scale the columns");
}

}  // namespace dovetail::fit
