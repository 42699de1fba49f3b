#pragma once

#include <arrow/type_fwd.h>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>

#include <memory>

#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {

/// Reads columns of a row group directly from their pages, without Arrow's arrays. Numbers are read
/// as they are. Texts are read as codes and words of the file's own dictionary, so that each word
/// is hashed once.
class FlatColumns {
 public:
  explicit FlatColumns(std::shared_ptr<parquet::RowGroupReader> group) : group_(std::move(group)) {}

  /// Reads `leaf`, a column of `type` with values of `out.kind`, into `out`. Returns false and
  /// reads nothing if the column is not flat. A flat column has one value or null per row (no
  /// lists, no structures). Its texts must all be in the dictionary. Does not set `out.owner`:
  /// words live as long as this object. Throws UserError without a place, or
  /// parquet::ParquetException, for a damaged file.
  bool read(int leaf, const arrow::DataType& type, ColumnValues& out);

 private:
  std::shared_ptr<parquet::RowGroupReader> group_;
  std::vector<std::shared_ptr<parquet::ColumnReader>> readers_;
};

}  // namespace dovetail::data
