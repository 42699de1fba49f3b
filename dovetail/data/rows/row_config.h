#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail {

/// Columns of numbers that are treated alike; each is an element of `RowBatch::dense`.
struct DenseConfig {
  std::vector<std::string> columns;
  std::string missing = "zero";    ///< zero | mean | bad_row
  std::string transform = "none";  ///< none | log1p | standard
  void describe(Section& s);
};

/// A categorical feature: a bag of ids, or a sequence of them in its order. The sequences of a row
/// tell of the same events: position i of each is event i.
struct SparseConfig {
  std::string name;                  ///< default: the column, or the columns joined by "_x_"
  std::vector<std::string> columns;  ///< several: what they hold together is one id (a cross)
  std::string ids = "hash";          ///< hash | integer
  int64_t num_rows =
      0;  ///< rows of the table; 0: 64-bit keys, for a table without a fixed vocabulary
  int64_t max_rows = 0;    ///< of a table without one: the most that it may have
  std::string max_bytes;   ///< of a table without one: base/byte_size.h; empty: what max_rows take
  std::string separator;   ///< between the ids of a text; empty: the text is one id
  std::string weights;     ///< column with a number for each id
  int64_t max_length = 0;  ///< ids of a list that are kept; 0: all
  std::string keep = "last";  ///< last | first: which of them
  bool sequence = false;      ///< one of the row's sequences, of max_length events at most
  std::string table;  ///< the feature whose table its ids are rows of; empty: a table of its own
  std::string missing = "empty";  ///< empty | value | bad_row
  int64_t dim = 0;                ///< elements of an embedding; 0: recommender.dim
  std::string pooling;            ///< sum | mean | none; empty: embedding.pooling

  std::string feature_name() const;
  bool hashed() const { return num_rows == 0; }  ///< its table has no fixed vocabulary
  bool pools() const { return pooling != "none"; }
  void describe(Section& s);
};

/// `[rows]`: the table that a recommender learns from. docs/design/embedding.md states order and
/// bounds.
struct RowsConfig {
  std::vector<std::string> files;
  std::string format = "auto";  ///< auto | parquet | tsv | csv
  std::string delimiter;        ///< default: tab or comma
  std::string decimal = ".";    ///< mark before the fraction of a number of a text
  bool header = true;
  std::vector<std::string> columns;  ///< of text without a header
  std::vector<std::string> label;    ///< "clicked" or "arr_delay > 15", one a task; see parse_label
  std::string missing_label = "drop";  ///< drop | mask | bad_row
  std::string group;                   ///< column whose rows GAUC ranks together
  std::vector<DenseConfig> dense;
  std::vector<SparseConfig> sparse;
  std::string day;  ///< column with each row's day; empty: the run does not go day by day
  double validation_fraction = 0.1;  ///< of a run that goes day by day: none
  int64_t shuffle_window = 200000;
  std::string bad_row = "error";  ///< error | skip
  int64_t max_bad_rows = 1000;
  int64_t threads = 2;
  int64_t cache_bytes = int64_t{1} << 30;

  /// Whether a run goes through the rows once, day by day, and measures itself on each day before
  /// it trains on it.
  bool by_day() const { return !day.empty(); }
  int64_t num_dense() const;  ///< D: the columns of all entries of `dense`
  void describe(Section& s);

  /// Throws UserError for keys that contradict one another or would have no effect.
  void check() const;
  /// The feature in `sparse` of that name, or -1.
  int64_t feature_index(std::string_view name) const;
};

/// A label of the config: the number in `column`, or how it compares with `threshold`.
struct LabelExpression {
  enum class Comparison { kNone, kGreater, kGreaterEqual, kLess, kLessEqual, kEqual, kNotEqual };
  std::string column;
  Comparison comparison = Comparison::kNone;
  double threshold = 0;

  /// 1 if the comparison is true, else 0; without one the number itself.
  double value(double number) const;
};

/// "clicked" or "arr_delay > 15", also with <, <=, >=, == or !=. Throws UserError for anything
/// else.
LabelExpression parse_label(const std::string& text);

}  // namespace dovetail
