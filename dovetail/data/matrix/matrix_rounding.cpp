#include "dovetail/data/matrix/matrix_rounding.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"

namespace dovetail::data {
namespace {

struct Spread {
  double least = std::numeric_limits<double>::infinity(),
         largest = -std::numeric_limits<double>::infinity();
  bool exact = true;  ///< float32 holds each value exactly

  void add(double value) {
    least = std::min(least, value);
    largest = std::max(largest, value);
    exact = exact && static_cast<double>(static_cast<float>(value)) == value;
  }
  void add(const Spread& other) {
    least = std::min(least, other.least);
    largest = std::max(largest, other.largest);
    exact = exact && other.exact;
  }
  double origin() const {
    constexpr double kWorth = 4;
    const double range = largest - least, magnitude = std::max(std::abs(least), std::abs(largest));
    return exact || magnitude <= kWorth * range ? 0 : least + range / 2;
  }
};

/// Moves the values of all parts into matrix.x as float64.
void keep_values(std::vector<MatrixPart>& parts, int64_t rows, Matrix& matrix) {
  matrix.x = at::empty({rows, std::ssize(matrix.columns)}, at::kDouble);
  auto* to = matrix.x.mutable_data_ptr<double>();
  for (MatrixPart& part : parts) {
    const std::vector<double> values = std::exchange(part.values, {});
    to = std::copy(values.begin(), values.end(), to);
  }
}

/// Number of neighbouring rows that differ in a column, and how many of them rounding makes equal.
struct Merged {
  int64_t differ = 0, merged = 0;
  double loss = 0;  ///< largest error
};

}  // namespace

void round_values(std::vector<MatrixPart>& parts, int64_t rows, MatrixType type, Matrix& matrix) {
  const size_t width = matrix.columns.size();
  std::vector<std::vector<Spread>> spreads(parts.size(), std::vector<Spread>(width));
  parallel_pieces(std::ssize(parts), 1, [&](int64_t i, int64_t) {
    const std::vector<double>& values = parts[static_cast<size_t>(i)].values;
    for (size_t at = 0; at < values.size(); ++at)
      spreads[static_cast<size_t>(i)][at % width].add(values[at]);
  });
  matrix.origin = at::zeros({static_cast<int64_t>(width)}, at::kDouble);
  if (type == MatrixType::kFloat64) return keep_values(parts, rows, matrix);
  auto* const origin = matrix.origin.mutable_data_ptr<double>();
  for (size_t c = 0; c < width; ++c) {
    Spread all;
    for (const auto& spread : spreads) all.add(spread[c]);
    if (type == MatrixType::kFloat32) {
      origin[c] = all.origin();
    } else if (!all.exact) {
      matrix.notes.push_back(fmt::format("rows are float64, since float32 rounds column `{}`",
                                         printable(matrix.columns[c])));
      return keep_values(parts, rows, matrix);
    }
  }
  matrix.x = at::empty({rows, static_cast<int64_t>(width)}, at::kFloat);
  std::vector<int64_t> first_row;
  int64_t row = 0;
  for (const MatrixPart& part : parts) {
    first_row.push_back(row);
    row += static_cast<int64_t>(part.values.size() / width);
  }
  DOVETAIL_CHECK(row == rows, "{} rows of {}", row, rows);
  auto* const x = matrix.x.mutable_data_ptr<float>();
  std::vector<std::vector<Merged>> merged(parts.size(), std::vector<Merged>(width));
  parallel_pieces(std::ssize(parts), 1, [&](int64_t p, int64_t) {
    const auto i = static_cast<size_t>(p);
    const std::vector<double> values = std::exchange(parts[i].values, {});
    float* const to = x + first_row[i] * static_cast<int64_t>(width);
    for (size_t at = 0; at < values.size(); ++at) {
      const size_t c = at % width;
      const double wanted = values[at] - origin[c];
      to[at] = static_cast<float>(wanted);
      Merged& column = merged[i][c];
      column.loss = std::max(column.loss, std::abs(static_cast<double>(to[at]) - wanted));
      if (at < width || values[at] == values[at - width]) continue;
      ++column.differ;
      column.merged += to[at] == to[at - width];
    }
  });
  for (size_t c = 0; c < width; ++c) {
    Merged all;
    for (const auto& part : merged) {
      all.differ += part[c].differ;
      all.merged += part[c].merged;
      all.loss = std::max(all.loss, part[c].loss);
    }
    if (100 * all.merged > all.differ)
      matrix.warnings.push_back(fmt::format(
          "column `{}`: float32 rounds its values by up to {:.3g}. This makes {} of {} differing "
          "neighbours equal. Scale it, or split it into columns of a smaller range",
          printable(matrix.columns[c]), all.loss, all.merged, all.differ));
  }
}

}  // namespace dovetail::data
