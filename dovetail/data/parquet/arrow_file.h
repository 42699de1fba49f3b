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

/// Open Parquet file, read through Arrow. Every failure of Arrow becomes a UserError that names the
/// file.
///
/// A Parquet file stores its rows in row groups. `group` is the index of a row group, from 0. A
/// top-level column (field of the schema) consists of one leaf column, or of several if it is
/// nested. `leaf` is the index of a leaf column.
class ArrowFile {
 public:
  /// Form in which `read` returns string columns. kPlain: strings. kDictionary: a dictionary of
  /// strings and a code per value, as most files store them. Columns with pages of DELTA_BYTE_ARRAY
  /// or DELTA_LENGTH_BYTE_ARRAY stay strings.
  enum class Texts { kPlain, kDictionary };
  ArrowFile(std::string path, Texts texts);

  const std::string& path() const { return path_; }
  const arrow::Schema& schema() const { return *schema_; }
  const parquet::FileMetaData& metadata() const { return *reader_->parquet_reader()->metadata(); }
  /// Returns the indices of the leaf columns of top-level column `field`. A nested column has
  /// several.
  std::vector<int> leaves(int field) const;
  /// Reads the leaf columns `leaves` of a row group. Checks them by check_values, and all codes
  /// against the size of their dictionary.
  std::shared_ptr<arrow::Table> read(int64_t group, const std::vector<int>& leaves) const;
  /// Checks the number of values that the file states for each of the leaf columns. Throws
  /// UserError if it contradicts the number of rows in the row group. Call it before reading in
  /// another way than by `read`: readers allocate memory for as many values as the file states.
  void check_values(int64_t group, const std::vector<int>& leaves) const;
  /// Returns a reader of the pages of a row group, for reading without Arrow's arrays. Call it
  /// within `guarded`.
  std::shared_ptr<parquet::RowGroupReader> group(int64_t group) const;

  /// Throws UserError that says: the file cannot be read, because of `reason`.
  [[noreturn]] void refuse(const std::string& reason) const;
  /// Throws UserError that says: the file is damaged. `words` is Arrow's message; the error quotes
  /// it without the names of C++ classes.
  [[noreturn]] void refuse_damage(std::string words) const;
  /// Throws UserError if `status` is a failure.
  void check(const arrow::Status& status) const;
  /// Calls `work` and returns its result. If Arrow throws an exception, as it does for a damaged
  /// file, throws UserError instead. This includes a failed allocation, since a damaged size can
  /// cause it.
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
  /// Same as `guarded`, for work on one row group. The error also names the row group.
  template <class Work>
  auto guarded_group(int64_t group, const Work& work) const {
    try {
      return guarded(work);
    } catch (const UserError& e) {
      throw UserError(e.what(), e.help(), fmt::format("{}: row group {}", path_, group));
    }
  }
  /// Returns the value of `result`. Throws UserError if it is a failure.
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
