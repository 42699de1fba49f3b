#pragma once

#include <vector>

#include "dovetail/data/matrix/matrix_part.h"

namespace dovetail::data {

/// Fills `matrix.x` and `matrix.origin` from `MatrixPart::values` of all parts, then frees
/// `MatrixPart::values`. A value of the file is x + origin: x is float32, and the origin of each
/// column is float64. `rows` is the number of rows of all parts together.
///
/// The origin of a column is 0 if float32 holds all its values exactly. It is also 0 if the largest
/// magnitude is at most 4 times the range (maximum - minimum). Subtracting an origin would then
/// save fewer than 3 bits. The origin of any other column is the middle of its range.
///
/// Rounding to float32 can make different values equal. Counts pairs of adjacent rows whose values
/// differ in a column. Adds a warning for the column if rounding makes more than 1 % of them equal.
///
/// With MatrixType::kExact and kFloat64 nothing is rounded. With kExact, `matrix.x` is float64 if
/// float32 does not hold all values exactly. A note then names such a column.
void round_values(std::vector<MatrixPart>& parts, int64_t rows, MatrixType type, Matrix& matrix);

}  // namespace dovetail::data
