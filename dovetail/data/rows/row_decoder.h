#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/parquet/parquet_module.h"
#include "dovetail/data/rows/row_config.h"

namespace dovetail::data {

/// Value of a column in one row of a file.
struct Cell {
  enum class Kind : uint8_t { kMissing, kText, kInteger, kBoolean, kReal, kList };
  Kind kind = Kind::kMissing;
  const std::string_view* text = nullptr;
  const uint64_t* key = nullptr;  ///< XXH64 of `text`; null if not computed yet
  int64_t integer = 0;            ///< integer, or a boolean as 0 or 1
  double real = 0;
  const ColumnValues* list = nullptr;  ///< kList: the list is elements [begin, end) of these values
  int64_t begin = 0, end = 0;
};

/// Sets `cell` to the value of a Parquet column in row `row`, counted from 0 within the row group.
/// Members that the kind of `cell` does not use keep their old values.
void set_row_cell(const ColumnValues& values, int64_t row, Cell& cell);

/// Row that cannot be parsed. `row` counts from 1 in the file, without the header.
struct BadRow {
  int64_t row = 0;
  std::string column;  ///< empty if the row as a whole is bad
  std::string reason;
};

/// Decoded rows that are adjacent in a file, without the rows that are left out. Legend: R kept
/// rows, D dense columns, L labels, F features.
struct RowBlock {
  int64_t num_rows = 0;
  std::vector<double> dense;    ///< (R, D), after log1p if configured; NaN: missing
  std::vector<float> labels;    ///< (R, L); NaN: masked
  std::vector<int64_t> groups;  ///< (R); empty if the config names no group
  std::vector<int64_t> ids;     ///< table rows or keys: row by row, within a row feature by feature
  std::vector<float> weights;   ///< weight of each id; empty if no feature has weights
  std::vector<uint32_t> ends;   ///< (R, F) one past the last index in `ids` of a row's feature
  /// First kept row of a day.
  struct DayStart {
    /// `row` is an index among the kept rows, from 0. `number` is the row in the file, from 1.
    int64_t row = 0, number = 0;
    std::string day;
  };
  std::vector<DayStart> days;  ///< empty if the config names no day
  /// Rows in the file, from 1 and ascending, that are bad or have no label.
  std::vector<int64_t> left_out;
  /// Forms of texts that are hashed as ids: a text such as 7.0, or any other.
  enum IdForm : uint8_t { kWholeFloat = 1, kOtherText = 2 };
  /// IdForm bits for each column of the decoder. Empty if no text was hashed.
  std::vector<uint8_t> id_forms;
  int64_t num_bad = 0;           ///< number of bad rows in `left_out`
  int64_t num_unlabelled = 0;    ///< number of rows without a label in `left_out`
  std::vector<BadRow> bad_rows;  ///< the first bad rows, at most 8

  /// Returns the index in `ids` where feature `f` of row `row` begins. The feature ends at
  /// `ends[row * num_features + f]`.
  uint32_t begin(int64_t row, int64_t f, int64_t num_features) const {
    const auto i = static_cast<size_t>(row * num_features + f);
    return i == 0 ? 0 : ends[i - 1];
  }
  uint64_t bytes() const;
};

/// Converts rows to numbers, labels and ids as configured.
///
/// The key of an id is XXH64 of its text. For an integer in Parquet, the text is its decimal form.
/// A whole float has the text of the integer; a boolean has the text True or False. A column
/// therefore has the same keys in a text file and in Parquet. The columns of a cross are joined by
/// the byte 0x1F before hashing. The table row is the unsigned key mod num_rows, or the key itself
/// if num_rows is 0.
class RowDecoder {
 public:
  explicit RowDecoder(const RowsConfig& config);

  /// Columns to read, each once.
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t num_features() const { return static_cast<int64_t>(features_.size()); }
  int64_t num_dense() const { return static_cast<int64_t>(dense_.size()); }
  int64_t num_labels() const { return static_cast<int64_t>(labels_.size()); }
  bool has_weights() const { return has_weights_; }
  bool has_groups() const { return group_ >= 0; }

  /// Throws UserError, naming `path`, if a column of lists has a separator. Also throws if
  /// max_length is given for a column with one id per row.
  void check_lists(const std::vector<bool>& column_is_list,
                   const std::filesystem::path& path) const;

  /// Reserves memory in `out` for `rows` more rows.
  void reserve(int64_t rows, RowBlock& out) const;

  /// Appends row number `row` (from 1) to `out`, or counts it as bad or unlabelled. `cells` are in
  /// the order of `columns()`. With missing_label = "bad_row", a row without a label is bad.
  void decode(std::span<const Cell> cells, int64_t row, RowBlock& out) const;

  /// Decodes rows [first, first + rows) of a Parquet row group as `decode` does. Row `first` has
  /// number `row` in the file. `columns` are in the order of `columns()`. Decodes a column at a
  /// time where its values do not depend on the rest of the row.
  void decode_columns(std::span<const ColumnValues> columns, int64_t first, int64_t rows,
                      int64_t row, RowBlock& out) const;

  /// Counts a row that has no cells as bad, such as a row of the wrong width.
  static void add_bad(RowBlock& out, BadRow bad);

 private:
  struct Dense {
    size_t column = 0;
    bool required = false, log1p = false;
  };
  struct Label {
    size_t column = 0;
    LabelExpression expression;
  };
  enum class Missing { kEmpty, kValue, kBadRow };
  struct Feature {
    std::vector<size_t> columns;
    int64_t weights = -1;  ///< column; -1: none
    bool hash = true;
    char separator = 0;  ///< 0: no separator
    uint64_t num_rows = 0;
    size_t max_length = 0;
    bool keep_last = true, sequence = false;
    Missing missing = Missing::kEmpty;
  };
  enum class Labels { kThere, kMissing, kBad };
  class ColumnTiles;  ///< implements decode_columns

  static int64_t table_row(uint64_t key, uint64_t num_rows);
  size_t column_index(const std::string& name);
  Feature make_feature(const SparseConfig& config);
  /// Removes from `out` what a rejected row has appended. `ids` is the size of `out.ids` before
  /// that row.
  void take_back(size_t ids, RowBlock& out) const;
  static void check_ids(const RowBlock& out);
  Labels decode_labels(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  bool decode_dense(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  /// `events` is the number of ids in the row's earlier sequences, or negative before the first
  /// one.
  bool decode_feature(const Feature& feature, std::span<const Cell> cells, int64_t& events,
                      RowBlock& out, BadRow& bad) const;
  bool same_events(const Feature& feature, int64_t length, int64_t& events, BadRow& bad) const;
  bool decode_cross(const Feature& feature, std::span<const Cell> cells, RowBlock& out,
                    BadRow& bad) const;
  bool decode_ids(const Feature& feature, const Cell& cell, RowBlock& out, BadRow& bad) const;
  bool add_missing(const Feature& feature, size_t column, RowBlock& out, BadRow& bad) const;
  static bool add_hashed(const Feature& feature, const Cell& value, RowBlock& out,
                         std::string& reason);
  bool add_integer(const Feature& feature, const Cell& value, RowBlock& out,
                   std::string& reason) const;
  /// Records in `out.id_forms` if a text that is hashed reads like a float.
  void note_form(size_t column, const Cell& value, RowBlock& out) const;
  bool decode_group(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  bool decode_day(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  bool decode_weights(const Feature& feature, const Cell& cell, RowBlock& out, BadRow& bad) const;

  std::vector<std::string> columns_;
  std::vector<Label> labels_;
  std::vector<Dense> dense_;
  std::vector<Feature> features_;
  int64_t group_ = -1, day_ = -1;  ///< columns; -1: none
  bool has_weights_ = false, mask_labels_ = false, label_required_ = false;
  char decimal_ = '.';  ///< decimal mark in text files
};

}  // namespace dovetail::data
