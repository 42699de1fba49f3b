#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail::data {

/// `[[rows.dense]]`: columns of numbers that are treated alike. Each is a column of
/// `RowBatch::dense`. A bad row is treated as RowsConfig::bad_row says.
struct DenseConfig {
  std::vector<std::string> columns;
  /// Treatment of a missing number. zero: use 0. mean: use the mean of the training rows. bad_row:
  /// the row is bad.
  std::string missing = "zero";
  /// Function of each number. log1p: ln(1 + max(x, 0)). standard: (x - mean) / deviation, computed
  /// over the training rows. none: the number itself.
  std::string transform = "none";
  void describe(Section& s);
};

/// `[[rows.sparse]]`: a categorical feature. Each row has a list of ids for it, which select rows
/// of an embedding table. The list is a bag (any order) or a sequence of events (order kept). All
/// sequences of a row describe the same events: position i of each sequence is event i.
struct SparseConfig {
  std::string name;                  ///< default: the column, or the columns joined by "_x_"
  std::vector<std::string> columns;  ///< if several, their combined values are one id (a cross)
  /// Conversion of the values to rows of the table. hash: the hash of the value's text gives the
  /// row. integer: the value is the row number. If `num_rows` is 0, they give 64-bit keys instead
  /// of rows.
  std::string ids = "hash";
  /// Rows of the embedding table. 0: the table has no fixed vocabulary. Ids are then 64-bit keys,
  /// and rows are assigned to keys during training.
  int64_t num_rows = 0;
  int64_t max_rows = 0;  ///< maximum number of rows of a table with num_rows = 0
  /// Maximum memory of a table with num_rows = 0, in the notation of base/byte_size.h. Empty:
  /// limited by max_rows alone.
  std::string max_bytes;
  /// Character between the ids in one text. Empty: the text is one id.
  std::string separator;
  /// Column with a weight for each id, in the same form as the ids. Empty: each weight is 1.
  std::string weights;
  int64_t max_length = 0;     ///< maximum number of ids to keep from a row's list; 0: all
  std::string keep = "last";  ///< last | first: part of a longer list to keep
  bool sequence = false;      ///< true: the list is a sequence of at most max_length events
  std::string table;          ///< feature whose table this one shares; empty: a table of its own
  /// Treatment of an empty text or a null. empty: no id. value: the id of an empty text. bad_row:
  /// the row is bad.
  std::string missing = "empty";
  int64_t dim = 0;  ///< elements of an embedding (width of the table); 0: recommender.dim
  /// Combination of the embeddings of a row's ids: sum | mean. none: they are passed side by side.
  /// Empty: embedding.pooling.
  std::string pooling;

  /// Returns `name`, or its default if it is empty.
  std::string feature_name() const;
  bool hashed() const { return num_rows == 0; }     ///< true if its table has no fixed vocabulary
  bool pools() const { return pooling != "none"; }  ///< true unless embeddings are side by side
  void describe(Section& s);
};

/// `[rows]`: the rows of Parquet and text files that a recommender learns from, one sample per row.
/// See docs/design/embedding.md for their order and their bounds.
///
/// A bad row has the wrong number of fields, or a value that cannot be used. Example: an id out of
/// range. An unlabelled row has no label to learn from (see missing_label).
struct RowsConfig {
  std::vector<std::string> files;  ///< files and globs, read in this order
  std::string format = "auto";     ///< auto | parquet | tsv | csv
  /// Character between the fields of a text file. Empty: tab for tsv, comma for csv. With format
  /// "auto", a first line without that character changes this: the delimiter is then found from the
  /// first lines.
  std::string delimiter;
  std::string decimal = ".";         ///< mark before the fraction of a number in a text file
  bool header = true;                ///< true: the first line of a text file names its columns
  std::vector<std::string> columns;  ///< names of the columns of text files without a header
  /// Labels to predict, one per task, such as "clicked" or "arr_delay > 15"; see parse_label.
  std::vector<std::string> label;
  /// Treatment of a row with a missing label. drop: leave the row out as unlabelled. mask: keep it
  /// with NaN for that label, if it has another label. bad_row: the row is bad.
  std::string missing_label = "drop";
  std::string group;  ///< column that groups rows, such as by user, for GAUC (AUC within groups)
  std::vector<DenseConfig> dense;
  std::vector<SparseConfig> sparse;
  std::string day;  ///< column with each row's day; empty: the run does not go day by day
  /// Share of the rows held out for validation: the last rows in file order. Not used in a run that
  /// goes day by day.
  double validation_fraction = 0.1;
  int64_t shuffle_window = 200000;  ///< consecutive rows that are shuffled together; 0: all rows
  std::string bad_row = "error";    ///< error: a bad row stops the run. skip: it is left out
  int64_t max_bad_rows = 1000;      ///< with bad_row = "skip": more bad rows stop the run
  int64_t threads = 2;              ///< decoding threads of each rank
  /// Maximum memory for decoded rows, in bytes. If not all rows fit, each epoch decodes them anew.
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

/// Entry of RowsConfig::label, parsed. The label of a row is the number in `column`, or the result
/// of comparing this number with `threshold`.
struct LabelExpression {
  enum class Comparison { kNone, kGreater, kGreaterEqual, kLess, kLessEqual, kEqual, kNotEqual };
  std::string column;
  Comparison comparison = Comparison::kNone;
  double threshold = 0;

  /// Returns the label for `number`, a value of `column`: 1 if the comparison is true, else 0.
  /// Returns the number itself if there is no comparison.
  double value(double number) const;
};

/// Parses "clicked" or "arr_delay > 15", also with <, <=, >=, == or !=. Throws UserError for
/// anything else.
LabelExpression parse_label(const std::string& text);

}  // namespace dovetail::data
