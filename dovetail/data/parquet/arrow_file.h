#pragma once

#include <arrow/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// An open Parquet file, whose every failure becomes a UserError that names it.
class ArrowFile {
 public:
  enum class Texts { kPlain, kDictionary };
  /// How columns of texts are read: as strings, or as codes of a dictionary, which most files hold.
  ArrowFile(std::string path, Texts texts);

  const std::string& path() const { return path_; }
  const arrow::Schema& schema() const { return *schema_; }
  const parquet::FileMetaData& metadata() const { return *reader_->parquet_reader()->metadata(); }
  /// The leaves below a field of the schema: Parquet numbers leaves, and a nested column has several.
  std::vector<int> leaves(int field) const;
  std::shared_ptr<arrow::Table> read(int64_t group, const std::vector<int>& leaves) const;
  /// A row group for reading below Arrow's arrays, where damage is a parquet::ParquetException.
  std::shared_ptr<parquet::RowGroupReader> group(int64_t group) const;

  [[noreturn]] void refuse(const std::string& reason) const;
  void check(const arrow::Status& status) const;
  template <class T>
  T check(arrow::Result<T> result) const {
    check(result.status());
    return std::move(result).ValueUnsafe();
  }

 private:
  std::string path_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::Schema> schema_;
};

}  // namespace dovetail
