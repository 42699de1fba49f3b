#include "dovetail/fit/rows/rows.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::fit {

const at::Tensor& check_rows(const char* who, const at::Tensor& x, bool takes_double) {
  const bool right_type =
      x.scalar_type() == at::kFloat || (takes_double && x.scalar_type() == at::kDouble);
  user_check(x.dim() == 2 && right_type && x.device().is_cpu() && x.is_contiguous(),
             "{}: x must be a contiguous float32 {}matrix on the CPU, but is {}", who,
             takes_double ? "or float64 " : "", ops::describe(x));
  user_check(x.size(0) > 0 && x.size(1) > 0,
             "{}: x has {} rows and {} columns; both must be at least 1", who, x.size(0),
             x.size(1));
  return x;
}

at::Tensor near_point(const at::Tensor& x, int64_t rows) {
  const at::Tensor some = x.slice(0, 0, x.size(0), std::max<int64_t>(1, x.size(0) / rows));
  return some.to(at::kDouble).mean(0).to(x.scalar_type());
}

void refuse_values(const char* who, const at::Tensor& x) {
  constexpr int64_t kPiece = 16384;
  for (int64_t begin = 0; begin < x.size(0); begin += kPiece) {
    const at::Tensor part = x.slice(0, begin, std::min(begin + kPiece, x.size(0)));
    const at::Tensor bad = at::isfinite(part).logical_not().nonzero();
    if (bad.numel() == 0) continue;
    throw UserError(fmt::format("{}: {} in row {}, column {} of x", who,
                                part[bad[0][0]][bad[0][1]].item<double>(),
                                begin + bad[0][0].item<int64_t>(), bad[0][1].item<int64_t>()),
                    "leave such rows out, or put numbers in their place");
  }
  throw UserError(
      fmt::format("{}: the values are too large: the sum of a column or of its squares is not "
                  "finite",
                  who),
      "scale the columns");
}

}  // namespace dovetail::fit
