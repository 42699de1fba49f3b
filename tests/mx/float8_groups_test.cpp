// FP8 with one scale for each group of rows, on the CPU.
#include "dovetail/mx/float8_groups.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "dovetail/mx/float8.h"
#include "tests/mx/blocks.h"

namespace dovetail::mx::float8_groups_test {
namespace {

/// Rows of groups of unequal sizes, in any order: one group is empty, one is zero, one has tiny
/// numbers. `finite`: without NaN and infinity in groups of their own.
at::Tensor rows_of(const at::Tensor& group, at::ScalarType dtype, bool finite) {
  const at::Tensor x = ordinary_values({group.size(0), 48}, 1, dtype);
  x.masked_fill_(group.eq(1).unsqueeze(1), 0);
  x.mul_(at::where(group.eq(3), 1e-30, 1.0).unsqueeze(1).to(dtype));
  if (!finite) {
    x[group.eq(4).nonzero()[0].item<int64_t>()][5] = -std::numeric_limits<double>::quiet_NaN();
    x[group.eq(5).nonzero()[0].item<int64_t>()][7] = -std::numeric_limits<double>::infinity();
  }
  return x;
}

/// Each group has the codes and the scale of its counted rows alone.
TEST(Float8Groups, AreThoseOfEachGroupAlone) {
  constexpr int64_t kGroups = 7, kRows = 90;
  at::Tensor group = at::arange(kRows, at::kLong).mul(31).remainder(kRows).remainder(kGroups);
  group.masked_fill_(group.eq(2), 0);  // group 2 has no rows
  const at::Tensor counted = at::arange(kRows, at::kLong).remainder(5).ne(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto format : {Format::kE4M3, Format::kE5M2}) {
      for (const bool power_of_two : {true, false}) {
        for (const bool finite : {true, false}) {
          SCOPED_TRACE(
              fmt::format("{} {} {} {}", c10::toString(dtype), name(format), power_of_two, finite));
          const at::Tensor x = rows_of(group, dtype, finite);
          // Rows that do not count are larger than all others.
          x.mul_(at::where(counted, 1.0, 100.0).unsqueeze(1).to(dtype));
          const Float8Groups found =
              quantize_float8_groups(x, group, counted, kGroups, format, power_of_two);
          EXPECT_EQ(found.codes.scalar_type(), float8_type(format));
          for (int64_t g = 0; g < kGroups; ++g) {
            const at::Tensor rows = group.eq(g).logical_and(counted).nonzero().view({-1});
            if (rows.numel() == 0) continue;
            const Float8Tensor alone =
                quantize_float8(x.index_select(0, rows),
                                {.format = format, .power_of_two = power_of_two})
                    .tensor;
            EXPECT_TRUE(at::equal(found.codes.view(at::kByte).index_select(0, rows), alone.codes))
                << "codes of group " << g;
            EXPECT_TRUE(at::equal(found.scales[g].view(at::kInt), alone.scales.view(at::kInt)) ||
                        (found.scales[g].isnan() & alone.scales.isnan()).item<bool>())
                << "scale of group " << g;
          }
          EXPECT_TRUE(found.scales[2].isfinite().item<bool>());
        }
      }
    }
  }
}

}  // namespace
}  // namespace dovetail::mx::float8_groups_test
