#pragma once

#include <filesystem>
#include <vector>

#include "dovetail/cli/fit/fitted_model.h"
#include "dovetail/data/matrix/matrix.h"

namespace dovetail::cli {

/// Returns the columns of a table in the order of the model, (N, D). `matrix` was read with
/// MatrixOptions::columns = the model's columns. Throws UserError if a column of the model is not
/// there by its name.
at::Tensor columns_of(const FittedModel& model, const data::Matrix& matrix);

/// Writes a CSV file, and the folders above it. A line for each row of x (N, D) has the number of
/// the row and the values of the model there. Row numbers count the rows of the table's file from
/// 0. `left_out` holds the numbers of rows without a line, ascending. Columns after `row`, by
/// model:
///
/// - gmm: label, log_likelihood, and the probability of each component
/// - linear: prediction
/// - logistic: prediction (a class), and the probability of each class
/// - pca: the coordinate along each direction
void write_predictions(const std::filesystem::path& path, const FittedModel& model,
                       const at::Tensor& x, const std::vector<int64_t>& left_out);

}  // namespace dovetail::cli
