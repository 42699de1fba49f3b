#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>

namespace dovetail::embedding {

/// How the rows of tables are stored; their optimizer's state is float32 with all of them.
///   kFloat32   4 bytes an element.
///   kBFloat16  2 bytes an element.
///   kMXFP8     A row's E4M3 codes, one byte an element, and behind them its E8M0 scales, one for
///   32 consecutive
///              elements, rounded up as `mx::quantize` has it (OCP Microscaling Formats v1.0).
enum class RowDtype { kFloat32, kBFloat16, kMXFP8 };

/// "fp32", "bf16", "mxfp8".
std::string_view name(RowDtype dtype);
/// The inverse. Throws UserError for another name, listing the valid ones.
RowDtype parse_row_dtype(std::string_view text);

/// What a stored row of `dim` elements is as a tensor: Float (dim), BFloat16 (dim), Byte (dim +
/// ceil(dim / 32)).
at::ScalarType stored_type(RowDtype dtype);
int64_t stored_width(RowDtype dtype, int64_t dim);
int64_t row_bytes(RowDtype dtype, int64_t dim);

/// The random words of a row that is rounded: element i of it takes word i % 4 of
/// Philox4x32-10(key, first_column / 4 + i / 4 in the low counter, row in the high one), so that
/// they are a function of what `key` mixes, row and column.
struct RowWords {
  uint64_t key = 0, row = 0;
  int64_t first_column = 0;  ///< a multiple of 4
};

/// The words that round the rows of a table in one step.
struct RowRounding {
  uint64_t key;
  int64_t first_row, row_step, first_column;  ///< of TableSlice
  const uint32_t* row_of;  ///< of each row, which one of the table it holds; or null: itself

  RowWords words(uint64_t row) const {
    const uint64_t of_table = row_of ? row_of[row] : row;
    return {key, static_cast<uint64_t>(first_row) + of_table * static_cast<uint64_t>(row_step),
            first_column};
  }
};

/// Writes `values` (dim) as a stored row, rounded stochastically: each element becomes one of its
/// two neighbours in the format, the upper one with the probability that makes the expected value
/// its own. bfloat16 takes the word's upper 16 bits, MXFP8 all 32. A number that is not finite
/// stays so in bfloat16, and makes its MXFP8 block NaN. float32 is copied.
void encode_row(RowDtype dtype, const float* values, int64_t dim, const RowWords& words, void* to);

/// The elements of a stored row, exact.
void decode_row(RowDtype dtype, const void* from, int64_t dim, float* values);

}  // namespace dovetail::embedding
