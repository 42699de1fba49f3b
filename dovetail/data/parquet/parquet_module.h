#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::data {

/// This header is the interface between libdovetail_data and libdovetail_parquet.so. The latter is
/// the module that links Arrow, and is loaded at run time. Neither side includes headers of the
/// other. data/files/parquet.h has the functions to call.
///
/// A Parquet file stores its rows in row groups. `group` is the index of a row group, from 0.

/// String column of a Parquet file, read one row group at a time.
class ParquetText {
 public:
  virtual ~ParquetText() = default;
  virtual int64_t num_row_groups() const = 0;
  /// Returns the decompressed size of the column in the row group, in bytes.
  virtual uint64_t group_bytes(int64_t group) const = 0;
  /// Calls `visit(row, text)` for each row of the row group, in order. `row` counts from 0 over the
  /// whole file; `text` is nullopt for a null. The bytes of `text` may not be UTF-8.
  virtual void read(
      int64_t group,
      const std::function<void(int64_t row, std::optional<std::string_view> text)>& visit) = 0;
};

/// Values of a column in a row group: one value per row, or one list of values per row. `kind`
/// tells where the values are: in `integers`, in `reals`, or in `codes` and `words`.
struct ColumnValues {
  enum class Kind { kInteger, kReal, kText };
  Kind kind = Kind::kInteger;
  std::vector<int64_t> integers;  ///< kInteger: integers, or booleans as 0 and 1
  bool booleans = false;          ///< true if `integers` are booleans
  std::vector<double> reals;      ///< kReal: values of half, float or double
  /// kText: index of each value in `words`. This kind holds strings, bytes and decimals. It also
  /// holds uint64, as digits, if the column has a value of 2^63 or more in the row group.
  std::vector<int32_t> codes;
  std::vector<std::string_view>
      words;                       ///< kText: texts, indexed by `codes`; valid while `owner` lives
  bool words_are_numbers = false;  ///< true if `words` are decimals or uint64
  std::vector<uint64_t> keys;      ///< xxh64 of each word of `words`
  std::vector<uint8_t> value_present;  ///< for each value; 0: null
  bool is_list = false;                ///< true if each row has a list of values
  /// (rows + 1), only if is_list. Row r has the values [list_begins[r], list_begins[r + 1]).
  std::vector<int64_t> list_begins;
  std::vector<uint8_t> list_present;  ///< for each row, only if is_list; 0: the list is null
  std::shared_ptr<const void> owner;  ///< memory that `words` points into
};

/// Selected columns of a Parquet file, read one row group at a time. Other columns are not read.
/// Not thread-safe.
class ParquetColumns {
 public:
  virtual ~ParquetColumns() = default;
  /// Returns the names of all top-level columns. A column's index is its position in this list.
  virtual std::vector<std::string> column_names() const = 0;
  virtual int64_t num_row_groups() const = 0;
  /// Returns the number of rows of a row group.
  virtual int64_t group_rows(int64_t group) const = 0;
  /// Returns the indices of the columns that hold row labels (the index of a pandas data frame).
  /// The file names them in pandas' metadata.
  virtual std::vector<size_t> index_columns() const = 0;
  /// Selects the columns that `read` returns, by their indices. Returns one entry for each of them:
  /// true if the column holds lists. Throws UserError for a type that `read` does not support.
  /// Supported types are booleans, integers, floats, decimals, strings, bytes, nulls, dictionaries,
  /// and lists of these.
  virtual std::vector<bool> select(const std::vector<size_t>& columns) = 0;
  /// Returns the selected columns of the row group, in the order of `select`.
  virtual std::vector<ColumnValues> read(int64_t group) = 0;
};

/// Stream of bytes, read from the first to the last.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Copies the next bytes to `to`, at least one and at most `bytes`. Returns their number; 0 at
  /// the end.
  virtual size_t read(char* to, size_t bytes) = 0;
};

/// Types and names of the functions that the module exports as `extern "C"`. They throw UserError.
using OpenParquetText = void (*)(const char* path, const char* column,
                                 std::unique_ptr<ParquetText>& reader);
using OpenParquetColumns = void (*)(const char* path, std::unique_ptr<ParquetColumns>& reader);
using ReadParquetRecords = void (*)(const char* path, const std::vector<std::string>& columns,
                                    nlohmann::json& records);
using OpenUnpacked = void (*)(const char* path, const char* codec, uint64_t begin, uint64_t bytes,
                              std::unique_ptr<ByteStream>& stream);
using Crc32 = uint32_t (*)(const void* bytes, size_t size);
constexpr const char* kParquetModule = "libdovetail_parquet.so";
constexpr const char* kParquetTextEntry = "dovetail_open_parquet_text";
constexpr const char* kParquetColumnsEntry = "dovetail_open_parquet_columns";
constexpr const char* kParquetRecordsEntry = "dovetail_read_parquet_records";
constexpr const char* kUnpackedEntry = "dovetail_open_unpacked";
constexpr const char* kCrc32Entry = "dovetail_crc32";

}  // namespace dovetail::data
