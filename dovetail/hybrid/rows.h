#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail::hybrid {

/// What every job on rows of numbers begins with. `who` stands in messages.

/// UserError unless x is a contiguous float32 matrix on the CPU of at least one row and one column.
const at::Tensor& check_rows(const char* who, const at::Tensor& x);

/// A point (D) float32 near the rows: the mean of some of them, evenly spread. Differences to it keep the digits that
/// large numbers close to each other would lose.
at::Tensor near_point(const at::Tensor& x);

/// Names the first value of x that is not finite.
[[noreturn]] void refuse_values(const char* who, const at::Tensor& x);

}  // namespace dovetail::hybrid
