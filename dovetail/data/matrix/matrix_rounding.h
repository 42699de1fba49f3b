#pragma once

#include <vector>

#include "dovetail/data/matrix/matrix_part.h"

namespace dovetail {

/// Fills x and origin of `matrix` from the values of all parts, `rows` together, which are emptied.
///
/// A column keeps origin 0 if float32 holds all its values, or if its largest magnitude is at most
/// 4 times its range: centring would then save fewer than 3 bits. Other columns get the middle of
/// their range. Adds a warning for a column where rounding makes more than 1 % of the neighbouring
/// rows equal that were not.
void round_values(std::vector<MatrixPart>& parts, int64_t rows, Matrix& matrix);

}  // namespace dovetail
