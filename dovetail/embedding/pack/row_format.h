#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>

namespace dovetail::embedding {

/// Storage format of table rows. The optimizer state is float32 for each format.
///   kFloat32   4 bytes an element.
///   kBFloat16  2 bytes an element.
///   kMXFP8     The row's E4M3 codes, one byte an element, followed by its E8M0 scales. A scale
///              covers 32 consecutive elements and is rounded up like in `mx::quantize` (OCP
///              Microscaling Formats v1.0).
enum class RowDtype { kFloat32, kBFloat16, kMXFP8 };

/// Returns "fp32", "bf16" or "mxfp8".
std::string_view name(RowDtype dtype);
/// Inverse of name(). Throws UserError for another name, listing the valid names.
RowDtype parse_row_dtype(std::string_view text);

/// Returns the tensor type of stored rows: Float, BFloat16, or Byte for kMXFP8.
at::ScalarType stored_type(RowDtype dtype);
/// Returns the number of stored_type elements that store a row of `dim` elements: dim, or for
/// kMXFP8 dim + ceil(dim / 32).
int64_t stored_width(RowDtype dtype, int64_t dim);
/// Returns the bytes of a stored row with `dim` elements.
int64_t row_bytes(RowDtype dtype, int64_t dim);

/// Source of the random 32-bit words for the stochastic rounding of one row. Element i takes word i
/// % 4 of a Philox4x32-10 call. The call has `key`, the low counter first_column / 4 + i / 4 and
/// the high counter `row`. So the words are a function of row, column and the values mixed into
/// `key`.
struct RowWords {
  uint64_t key = 0, row = 0;
  int64_t first_column = 0;  ///< column of element 0 in the whole table, a multiple of 4
};

/// Source of the random words for all rows of a table in one step.
struct RowRounding {
  /// Key of the Philox calls (RowWords).
  uint64_t key;
  int64_t first_row, row_step, first_column;  ///< as in TableSlice (table.h)
  /// Row number of each slot, a place in memory for one row. Needed for tables whose slots hold
  /// different rows over time. Null: slot i holds row i.
  const uint32_t* row_of;

  /// Returns the words for the row in slot `row`.
  RowWords words(uint64_t row) const {
    const uint64_t of_table = row_of ? row_of[row] : row;
    return {key, static_cast<uint64_t>(first_row) + of_table * static_cast<uint64_t>(row_step),
            first_column};
  }
};

/// Writes `values` (dim) as a stored row with stochastic rounding. Each element becomes one of its
/// two neighbours in the format. The upper neighbour's probability is such that the expected value
/// equals the element. For BF16, the upper 16 bits of a random word decide; for MXFP8, all 32. A
/// non-finite element stays as it is in bfloat16 and makes its MXFP8 block NaN. float32 is copied.
void encode_row(RowDtype dtype, const float* values, int64_t dim, const RowWords& words, void* to);

/// Reads the elements of a stored row. The result is exact.
void decode_row(RowDtype dtype, const void* from, int64_t dim, float* values);

}  // namespace dovetail::embedding
