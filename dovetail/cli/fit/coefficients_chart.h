#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "dovetail/data/matrix/matrix.h"

namespace dovetail::cli {

/// Returns a chart of a regression's coefficients (C, D), one row for each of `names` (C). Each is
/// multiplied by the standard deviation of its column, so that columns in different units compare.
/// Shows the 40 columns with the largest products, and at most 12 names.
std::string coefficients_chart(const data::Matrix& matrix, const at::Tensor& coefficients,
                               const std::vector<std::string>& names);

}  // namespace dovetail::cli
