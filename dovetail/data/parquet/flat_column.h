#pragma once

#include <arrow/type_fwd.h>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>

#include <memory>

#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail {

/// Reads columns of a row group from their pages, with nothing of Arrow's arrays between: numbers
/// as they are, and of texts the codes and the words of the file's own dictionary, a word hashed
/// once.
class FlatColumns {
 public:
  explicit FlatColumns(std::shared_ptr<parquet::RowGroupReader> group) : group_(std::move(group)) {}

  /// Writes `leaf`, a column of `type` that holds values of `out.kind`, to `out`. False, with
  /// nothing read, if it is no such column: a value must be there or missing (no lists, no
  /// structures), and texts must all be in the dictionary. `out.owner` is not set: words live as
  /// long as this. Throws UserError, with no place, or parquet::ParquetException for a damaged
  /// file.
  bool read(int leaf, const arrow::DataType& type, ColumnValues& out);

 private:
  std::shared_ptr<parquet::RowGroupReader> group_;
  std::vector<std::shared_ptr<parquet::ColumnReader>> readers_;
};

}  // namespace dovetail
