#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail::data {

/// Columns of numbers with the same treatment. Each is a column of `RowBatch::dense`.
struct DenseConfig {
  std::vector<std::string> columns;
  std::string missing = "zero";    ///< zero | mean | bad_row
  std::string transform = "none";  ///< none | log1p | standard
  void describe(Section& s);
};

/// Categorical feature: a bag of ids, or a sequence of ids in its order. The sequences of a row
/// describe the same events: position i of each sequence is event i.
struct SparseConfig {
  std::string name;                  ///< default: the column, or the columns joined by "_x_"
  std::vector<std::string> columns;  ///< if several, their combined values are one id (a cross)
  std::string ids = "hash";          ///< hash | integer
  /// Rows of the table. 0: ids are 64-bit keys, for a table without a fixed vocabulary.
  int64_t num_rows = 0;
  int64_t max_rows = 0;  ///< maximum rows of a table with num_rows = 0
  /// Maximum memory of a table with num_rows = 0, in the notation of base/byte_size.h. Empty: what
  /// max_rows take.
  std::string max_bytes;
  std::string separator;      ///< separator of the ids in a text; empty: the text is one id
  std::string weights;        ///< column with a number for each id
  int64_t max_length = 0;     ///< maximum number of ids to keep of a list; 0: all
  std::string keep = "last";  ///< last | first: end of the list to keep
  bool sequence = false;  ///< the ids are one of the row's sequences, of at most max_length events
  std::string table;      ///< feature whose table this one shares; empty: a table of its own
  std::string missing = "empty";  ///< empty | value | bad_row
  int64_t dim = 0;                ///< elements of an embedding; 0: recommender.dim
  std::string pooling;            ///< sum | mean | none; empty: embedding.pooling

  std::string feature_name() const;
  bool hashed() const { return num_rows == 0; }  ///< true if its table has no fixed vocabulary
  bool pools() const { return pooling != "none"; }
  void describe(Section& s);
};

/// `[rows]`: rows that a recommender learns from. docs/design/embedding.md states their order and
/// their bounds.
struct RowsConfig {
  std::vector<std::string> files;
  std::string format = "auto";  ///< auto | parquet | tsv | csv
  std::string delimiter;        ///< default: tab or comma
  std::string decimal = ".";    ///< decimal mark of a number in text
  bool header = true;
  std::vector<std::string> columns;  ///< names of the columns of text without a header
  /// One per task, such as "clicked" or "arr_delay > 15"; see parse_label.
  std::vector<std::string> label;
  std::string missing_label = "drop";  ///< drop | mask | bad_row
  std::string group;                   ///< column that groups rows for GAUC
  std::vector<DenseConfig> dense;
  std::vector<SparseConfig> sparse;
  std::string day;  ///< column with each row's day; empty: the run does not go day by day
  /// Share of the rows held out; not used in a run that goes day by day.
  double validation_fraction = 0.1;
  int64_t shuffle_window = 200000;
  std::string bad_row = "error";  ///< error | skip
  int64_t max_bad_rows = 1000;
  int64_t threads = 2;
  int64_t cache_bytes = int64_t{1} << 30;

  /// Returns true if a run reads the rows once, day by day. The run evaluates on each day before it
  /// trains on that day.
  bool by_day() const { return !day.empty(); }
  int64_t num_dense() const;  ///< D: number of columns in all entries of `dense`
  void describe(Section& s);

  /// Throws UserError for keys that contradict one another or have no effect.
  void check() const;
  /// Returns the index in `sparse` of the feature of that name, or -1.
  int64_t feature_index(std::string_view name) const;
};

/// Label of the config: the number in `column`, or the result of comparing it with `threshold`.
struct LabelExpression {
  enum class Comparison { kNone, kGreater, kGreaterEqual, kLess, kLessEqual, kEqual, kNotEqual };
  std::string column;
  Comparison comparison = Comparison::kNone;
  double threshold = 0;

  /// Returns 1 if the comparison is true, else 0. Returns the number itself if there is no
  /// comparison.
  double value(double number) const;
};

/// Parses "clicked" or "arr_delay > 15", also with <, <=, >=, == or !=. Throws UserError for
/// anything else.
LabelExpression parse_label(const std::string& text);

}  // namespace dovetail::data
