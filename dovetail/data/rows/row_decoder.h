#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/parquet/parquet_module.h"
#include "dovetail/data/rows/row_config.h"

namespace dovetail {

/// What a column of one row holds in its file.
struct Cell {
  enum class Kind : uint8_t { kMissing, kText, kInteger, kBoolean, kReal, kList };
  Kind kind = Kind::kMissing;
  const std::string_view* text = nullptr;
  const uint64_t* key = nullptr;  ///< of the text, where it is known
  int64_t integer = 0;            ///< also a boolean, as 0 or 1
  double real = 0;
  const ColumnValues* list = nullptr;  ///< the list is its values [begin, end)
  int64_t begin = 0, end = 0;
};

/// Makes `cell` what row `row` of a row group holds in a column of Parquet; what its kind does not
/// use stays.
void set_row_cell(const ColumnValues& values, int64_t row, Cell& cell);

/// A row that could not be understood. Rows count from 1 in their file, its header not among them.
struct BadRow {
  int64_t row = 0;
  std::string column;  ///< empty: the row as a whole
  std::string reason;
};

/// Rows that lay together in a file, as numbers; only those that were kept. R rows, D dense
/// columns, L labels, F features.
struct RowBlock {
  int64_t num_rows = 0;
  std::vector<double> dense;    ///< (R, D) after log1p, NaN where missing
  std::vector<float> labels;    ///< (R, L), NaN where masked
  std::vector<int64_t> groups;  ///< (R), where the config names a group
  std::vector<int64_t> ids;     ///< row by row, in a row feature by feature
  std::vector<float> weights;   ///< of `ids`, where a feature has weights
  std::vector<uint32_t> ends;   ///< (R, F) where the ids of a row's feature end in `ids`
  /// Where another day begins among the kept rows.
  struct DayStart {
    int64_t row = 0, number = 0;  ///< of the kept rows, from 0; in the file, from 1
    std::string day;
  };
  std::vector<DayStart> days;  ///< where the config names a day
  std::vector<int64_t>
      left_out;  ///< bad rows and those without label, by their number in the file, ascending
  /// Forms of hashed texts.
  enum IdForm : uint8_t { kWholeFloat = 1, kOtherText = 2 };
  std::vector<uint8_t> id_forms;  ///< by column of the decoder, IdForm as bits; empty without texts
  int64_t num_bad = 0;            ///< of them
  int64_t num_unlabelled = 0;     ///< of them
  std::vector<BadRow> bad_rows;   ///< the first of them

  /// The ids of feature `f` of row `row` are ids[begin, end).
  uint32_t begin(int64_t row, int64_t f, int64_t num_features) const {
    const auto i = static_cast<size_t>(row * num_features + f);
    return i == 0 ? 0 : ends[i - 1];
  }
  uint64_t bytes() const;
};

/// Understands rows as the config says.
///
/// The key of an id is XXH64 of its text. An integer of Parquet hashes as its decimal text, a whole
/// float as that integer, a boolean as True or False, so that a column has the same keys in text
/// and Parquet. The parts of a cross are joined by the byte 0x1F. The table row is key mod
/// num_rows, unsigned.
class RowDecoder {
 public:
  explicit RowDecoder(const RowsConfig& config);

  /// The columns that are read, each once.
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t num_features() const { return static_cast<int64_t>(features_.size()); }
  int64_t num_dense() const { return static_cast<int64_t>(dense_.size()); }
  int64_t num_labels() const { return static_cast<int64_t>(labels_.size()); }
  bool has_weights() const { return has_weights_; }
  bool has_groups() const { return group_ >= 0; }

  /// Throws UserError, naming `path`, if a separator stands for a column of lists, or a length for
  /// a column without.
  void check_lists(const std::vector<bool>& column_is_list,
                   const std::filesystem::path& path) const;

  /// Room in `out` for that many rows.
  void reserve(int64_t rows, RowBlock& out) const;

  /// Appends row number `row` (from 1), or counts it as bad or unlabelled. `cells` are in the order
  /// of `columns`. With missing_label = "bad_row" a row without label is a bad one.
  void decode(std::span<const Cell> cells, int64_t row, RowBlock& out) const;

  /// The same for rows [first, first + rows) of a row group of Parquet, of which the first is
  /// number `row`. `columns` are in the order of `columns`. A column at a time, where its values
  /// can be taken without looking at the rest of the row.
  void decode_columns(std::span<const ColumnValues> columns, int64_t first, int64_t rows,
                      int64_t row, RowBlock& out) const;

  /// Counts a row that has no cells, such as one of the wrong width.
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
    int64_t weights = -1;  ///< column, or none
    bool hash = true;
    char separator = 0;  ///< 0: none
    uint64_t num_rows = 0;
    size_t max_length = 0;
    bool keep_last = true, sequence = false;
    Missing missing = Missing::kEmpty;
  };
  enum class Labels { kThere, kMissing, kBad };
  class ColumnTiles;  ///< of decode_columns

  static int64_t table_row(uint64_t key, uint64_t num_rows);
  size_t column_index(const std::string& name);
  Feature make_feature(const SparseConfig& config);
  /// Makes `out` what it was before a row that is not kept, when it had `ids` ids.
  void take_back(size_t ids, RowBlock& out) const;
  static void check_ids(const RowBlock& out);
  Labels decode_labels(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  bool decode_dense(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  /// `events`: the ids of the row's sequences so far, or negative.
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
  /// Notes whether a text that is hashed reads like a float.
  void note_form(size_t column, const Cell& value, RowBlock& out) const;
  bool decode_group(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  bool decode_day(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const;
  bool decode_weights(const Feature& feature, const Cell& cell, RowBlock& out, BadRow& bad) const;

  std::vector<std::string> columns_;
  std::vector<Label> labels_;
  std::vector<Dense> dense_;
  std::vector<Feature> features_;
  int64_t group_ = -1, day_ = -1;  ///< columns, or none
  bool has_weights_ = false, mask_labels_ = false, label_required_ = false;
  char decimal_ = '.';  ///< in texts
};

}  // namespace dovetail
