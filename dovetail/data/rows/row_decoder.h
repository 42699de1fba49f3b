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

/// Value of a column in one row of a file. `kind` tells which members hold it.
struct Cell {
  enum class Kind : uint8_t { kMissing, kText, kInteger, kBoolean, kReal, kList };
  Kind kind = Kind::kMissing;
  const std::string_view* text = nullptr;  ///< kText
  const uint64_t* key = nullptr;           ///< kText: XXH64 of `text`; null if not computed yet
  int64_t integer = 0;                     ///< kInteger: the integer; kBoolean: 0 or 1
  double real = 0;                         ///< kReal
  const ColumnValues* list = nullptr;      ///< kList: the list is values [begin, end) of these
  int64_t begin = 0, end = 0;
};

/// Sets `cell` to the value of a Parquet column in row `row`, counted from 0 within the row group.
/// Members that the kind of `cell` does not use keep their old values.
void set_row_cell(const ColumnValues& values, int64_t row, Cell& cell);

/// Bad row: its values cannot be decoded as the config asks.
struct BadRow {
  int64_t row = 0;     ///< number of the row in its file, from 1, without the header
  std::string column;  ///< column with the bad value; empty if the row as a whole is bad
  std::string reason;  ///< end of an error message
};

/// Decoded rows of a range of adjacent rows in a file. Bad rows and rows without a label are left
/// out; the others are the kept rows. R is the number of kept rows, D of dense columns, L of labels
/// and F of features.
struct RowBlock {
  int64_t num_rows = 0;         ///< R
  std::vector<double> dense;    ///< (R, D), after log1p if configured; NaN: missing
  std::vector<float> labels;    ///< (R, L); NaN: the row has no such label
  std::vector<int64_t> groups;  ///< (R); empty if the config names no group
  /// Ids of all kept rows, as table rows or 64-bit keys. They are ordered by row, and within a row
  /// by feature.
  std::vector<int64_t> ids;
  std::vector<float> weights;  ///< weight of each id; empty if no feature has weights
  /// (R, F): end of the range in `ids` with the ids of a feature in a row. The function `begin`
  /// returns the start of the range.
  std::vector<uint32_t> ends;
  /// First kept row of a day in this block.
  struct DayStart {
    /// `row` is an index among the kept rows, from 0. `number` is the number in the file, from 1.
    int64_t row = 0, number = 0;
    std::string day;
  };
  /// Days of the kept rows, in order. Empty if the config names no day.
  std::vector<DayStart> days;
  /// Numbers in the file (from 1, ascending) of the rows that are bad or have no label.
  std::vector<int64_t> left_out;
  /// Forms of texts that are hashed as ids, to find integers that were written as floats.
  /// kWholeFloat: a text such as "7.0". kOtherText: any other text.
  enum IdForm : uint8_t { kWholeFloat = 1, kOtherText = 2 };
  /// Set of the forms that occurred, as IdForm bits, for each column of RowDecoder::columns. Empty
  /// if no text was hashed.
  std::vector<uint8_t> id_forms;
  int64_t num_bad = 0;           ///< number of bad rows in `left_out`
  int64_t num_unlabelled = 0;    ///< number of rows without a label in `left_out`
  std::vector<BadRow> bad_rows;  ///< the first bad rows, at most 8

  /// Returns the index in `ids` of the first id that kept row `row` has for feature `f`. The range
  /// ends at `ends[row * num_features + f]`. `num_features` is F.
  uint32_t begin(int64_t row, int64_t f, int64_t num_features) const {
    const auto i = static_cast<size_t>(row * num_features + f);
    return i == 0 ? 0 : ends[i - 1];
  }
  /// Returns the memory of the decoded rows, in bytes.
  uint64_t bytes() const;
};

/// Converts rows of files to numbers, labels and ids, as `[rows]` of the config says.
///
/// With ids = "hash", an id is hashed to a key: XXH64 of its text. For an integer in Parquet, the
/// text is its decimal form. A float that is a whole number has the text of the integer; a boolean
/// has the text True or False. A column therefore has the same keys in a text file and in Parquet.
/// A cross hashes the texts of its columns, joined by the byte 0x1F. The table row is the unsigned
/// key mod SparseConfig::num_rows, or the key itself if num_rows is 0.
class RowDecoder {
 public:
  explicit RowDecoder(const RowsConfig& config);

  /// Returns the names of the columns that the config uses, each once: the columns to read from
  /// files.
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t num_features() const { return static_cast<int64_t>(features_.size()); }
  int64_t num_dense() const { return static_cast<int64_t>(dense_.size()); }
  int64_t num_labels() const { return static_cast<int64_t>(labels_.size()); }
  bool has_weights() const { return has_weights_; }
  bool has_groups() const { return group_ >= 0; }

  /// Throws UserError, naming `path`, if the config gives a separator for a column that holds
  /// lists. Also throws if it gives max_length for a column with one id per row. `column_is_list`
  /// has an entry for each of `columns()`.
  void check_lists(const std::vector<bool>& column_is_list,
                   const std::filesystem::path& path) const;

  /// Reserves memory in `out` for `rows` more rows.
  void reserve(int64_t rows, RowBlock& out) const;

  /// Decodes one row and appends it to `out`. If the row is bad or has no label, adds it to
  /// `out.left_out` instead. `cells` are in the order of `columns()`; `row` is the number of the
  /// row in the file, from 1. With missing_label = "bad_row", a row without a label is bad.
  void decode(std::span<const Cell> cells, int64_t row, RowBlock& out) const;

  /// Decodes rows [first, first + rows) of a Parquet row group, with the same result as `decode`
  /// for each row. Row `first` has number `row` in the file, from 1. `columns` holds the values of
  /// the row group, in the order of `columns()`. Decodes a column at a time where its values do not
  /// depend on the rest of the row.
  void decode_columns(std::span<const ColumnValues> columns, int64_t first, int64_t rows,
                      int64_t row, RowBlock& out) const;

  /// Adds a bad row to `out` that has no cells to decode, such as a row with too few fields.
  static void add_bad(RowBlock& out, BadRow bad);

 private:
  // In these structs, a column is an index in `columns_`.
  struct Dense {
    size_t column = 0;
    bool required = false, log1p = false;  ///< required: a row without the number is bad
  };
  struct Label {
    size_t column = 0;
    LabelExpression expression;
  };
  enum class Missing { kEmpty, kValue, kBadRow };
  struct Feature {
    std::vector<size_t> columns;
    int64_t weights = -1;   ///< column with the weights; -1: none
    bool hash = true;       ///< ids = "hash"
    char separator = 0;     ///< 0: no separator
    uint64_t num_rows = 0;  ///< SparseConfig::num_rows
    size_t max_length = 0;
    bool keep_last = true, sequence = false;
    Missing missing = Missing::kEmpty;
  };
  enum class Labels { kThere, kMissing, kBad };
  class ColumnTiles;  ///< implements decode_columns

  /// Returns the id for a key: the key mod num_rows, or the key itself if num_rows is 0.
  static int64_t table_row(uint64_t key, uint64_t num_rows);
  /// Returns the index of a column in `columns_`; appends it if it is new.
  size_t column_index(const std::string& name);
  Feature make_feature(const SparseConfig& config);
  /// Removes the values of a row that is left out after all. `ids` is the size of `out.ids` before
  /// that row.
  void take_back(size_t ids, RowBlock& out) const;
  /// Throws UserError if the block has more ids than `RowBlock::ends` can count (2^32).
  static void check_ids(const RowBlock& out);
  // The next functions append one part of a row to `out`. They return false and fill `bad` if the
  // row is bad.
  Labels decode_labels(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  bool decode_dense(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  /// `events` is the length of the row's earlier sequences, or negative before the first one. Sets
  /// it if the feature is a sequence.
  bool decode_feature(const Feature& feature, std::span<const Cell> cells, int64_t& events,
                      RowBlock& out, BadRow& bad) const;
  /// Returns true if a sequence of `length` ids is as long as the row's earlier ones (`events`).
  bool same_events(const Feature& feature, int64_t length, int64_t& events, BadRow& bad) const;
  /// Appends the one id of a feature with several columns.
  bool decode_cross(const Feature& feature, std::span<const Cell> cells, RowBlock& out,
                    BadRow& bad) const;
  bool decode_ids(const Feature& feature, const Cell& cell, RowBlock& out, BadRow& bad) const;
  /// Handles a missing id as SparseConfig::missing says.
  bool add_missing(const Feature& feature, size_t column, RowBlock& out, BadRow& bad) const;
  /// Appends the id of a value for ids = "hash".
  static bool add_hashed(const Feature& feature, const Cell& value, RowBlock& out,
                         std::string& reason);
  /// Appends the id of a value for ids = "integer".
  bool add_integer(const Feature& feature, const Cell& value, RowBlock& out,
                   std::string& reason) const;
  /// Records in `out.id_forms` whether a text that is hashed reads like a whole float, such as
  /// "7.0".
  void note_form(size_t column, const Cell& value, RowBlock& out) const;
  bool decode_group(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  bool decode_day(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  bool decode_weights(const Feature& feature, const Cell& cell, RowBlock& out, BadRow& bad) const;

  std::vector<std::string> columns_;
  std::vector<Label> labels_;
  std::vector<Dense> dense_;
  std::vector<Feature> features_;
  int64_t group_ = -1, day_ = -1;  ///< columns of the group and of the day; -1: none
  bool has_weights_ = false, mask_labels_ = false, label_required_ = false;
  char decimal_ = '.';  ///< decimal mark in text files
};

}  // namespace dovetail::data
