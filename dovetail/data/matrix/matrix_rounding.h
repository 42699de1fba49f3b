#pragma once

#include <vector>

#include "dovetail/data/matrix/matrix_part.h"

namespace dovetail::data {

/// Fills x and origin of `matrix` from the values of all parts, and empties these values. `rows` is
/// the number of rows of all parts.
///
/// A column keeps origin 0 if float32 holds all its values exactly. A column also keeps origin 0 if
/// its largest magnitude is at most 4 times its range. Centring would then save fewer than 3 bits.
/// The origin of other columns is the middle of their range. Adds a warning for a column if
/// rounding makes more than 1 % of its differing neighbouring rows equal.
void round_values(std::vector<MatrixPart>& parts, int64_t rows, Matrix& matrix);

}  // namespace dovetail::data
