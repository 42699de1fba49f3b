#pragma once

#include <arrow/type_fwd.h>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>

#include <memory>

#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {

/// Reader of flat columns of one row group. It decodes the pages of the file directly, without
/// Arrow's arrays. A flat column has one value or null per row (no lists, no structures).
///
/// Numbers are read as they are. A string column is read as the words of the file's own dictionary
/// and one code per row. A code is the index of a word. So each word is hashed once.
class FlatColumns {
 public:
  explicit FlatColumns(std::shared_ptr<parquet::RowGroupReader> group) : group_(std::move(group)) {}

  /// Reads a column into `out` and returns true. `leaf` is the index of the leaf column, `type` its
  /// type, and `out.kind` must be set already (value_kind). Returns false and reads nothing if the
  /// column is not flat, or if it has strings outside the dictionary.
  ///
  /// Does not set `out.owner`: the words are valid only as long as this object lives. If the file
  /// is damaged, throws parquet::ParquetException, or a UserError with an empty place().
  bool read(int leaf, const arrow::DataType& type, ColumnValues& out);

 private:
  std::shared_ptr<parquet::RowGroupReader> group_;
  std::vector<std::shared_ptr<parquet::ColumnReader>> readers_;
};

}  // namespace dovetail::data
