#pragma once

#include <arrow/api.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::data {

/// Open Parquet file. Every failure becomes a UserError that names the file.
class ArrowFile {
 public:
  enum class Texts { kPlain, kDictionary };
  /// `texts` is the form in which columns of texts are read: strings, or codes of a dictionary.
  /// Most files store a dictionary.
  ArrowFile(std::string path, Texts texts);

  const std::string& path() const { return path_; }
  const arrow::Schema& schema() const { return *schema_; }
  const parquet::FileMetaData& metadata() const { return *reader_->parquet_reader()->metadata(); }
  /// Returns the leaf columns below a field of the schema. Parquet numbers leaves, and a nested
  /// column has several.
  std::vector<int> leaves(int field) const;
  std::shared_ptr<arrow::Table> read(int64_t group, const std::vector<int>& leaves) const;
  /// Throws UserError if the value counts of `leaves` contradict the rows of the group. Memory is
  /// allocated by these counts.
  void check_values(int64_t group, const std::vector<int>& leaves) const;
  /// Opens a row group for reading below Arrow's arrays. Call it within `guarded`.
  std::shared_ptr<parquet::RowGroupReader> group(int64_t group) const;

  [[noreturn]] void refuse(const std::string& reason) const;
  /// Throws UserError for a damaged file. Quotes Arrow's message without the names of C++ classes.
  [[noreturn]] void refuse_damage(std::string words) const;
  void check(const arrow::Status& status) const;
  /// Returns the result of `work`. Converts exceptions, by which Arrow reports damage, to
  /// UserError. A failed allocation also counts as damage, since a damaged size can cause it.
  template <class Work>
  auto guarded(const Work& work) const {
    try {
      return work();
    } catch (const UserError&) {
      throw;
    } catch (const parquet::ParquetException& e) {
      refuse_damage(e.what());
    } catch (const std::exception&) {
      refuse_damage({});
    }
  }
  /// Same as `guarded` for a row group, which the error names.
  template <class Work>
  auto guarded_group(int64_t group, const Work& work) const {
    try {
      return guarded(work);
    } catch (const UserError& e) {
      throw UserError(e.what(), e.help(), fmt::format("{}: row group {}", path_, group));
    }
  }
  template <class T>
  T check(arrow::Result<T> result) const {
    check(result.status());
    return std::move(result).ValueUnsafe();
  }

 private:
  void check_rows() const;

  std::string path_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::Schema> schema_;
};

}  // namespace dovetail::data
