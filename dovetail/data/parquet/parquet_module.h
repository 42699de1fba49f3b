#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::data {

/// String column of a Parquet file, read one row group at a time. This header is the interface
/// between libdovetail_data and the module that links Arrow. Neither side includes headers of the
/// other.
class ParquetText {
 public:
  virtual ~ParquetText() = default;
  virtual int64_t num_row_groups() const = 0;
  /// Returns the bytes of the column in the row group, decompressed.
  virtual uint64_t group_bytes(int64_t group) const = 0;
  /// Calls `visit` with each text of the row group and its row in the file; nullopt for null. Texts
  /// are bytes that may not be UTF-8.
  virtual void read(
      int64_t group,
      const std::function<void(int64_t row, std::optional<std::string_view> text)>& visit) = 0;
};

/// Values of a column in a row group: one value per row, or one list of values per row.
struct ColumnValues {
  enum class Kind { kInteger, kReal, kText };
  Kind kind = Kind::kInteger;
  std::vector<int64_t> integers;  ///< integers, or booleans as 0 and 1
  bool booleans = false;          ///< `integers` are booleans
  std::vector<double> reals;      ///< half, float and double
  /// Index of each value in `words`: strings, bytes, decimals, and uint64 of a column that reaches
  /// 2^63.
  std::vector<int32_t> codes;
  std::vector<std::string_view> words;  ///< valid as long as `owner` lives
  bool words_are_numbers = false;       ///< `words` are decimals or uint64
  std::vector<uint64_t> keys;           ///< xxh64 of each of `words`
  std::vector<uint8_t> value_present;   ///< for each value; 0: null
  bool is_list = false;
  /// (rows + 1). Values of row r are [list_begins[r], list_begins[r + 1]).
  std::vector<int64_t> list_begins;
  std::vector<uint8_t> list_present;  ///< for each row; 0: null
  std::shared_ptr<const void> owner;
};

/// Selected columns of a Parquet file, read one row group at a time. Other columns are not read.
/// Not thread-safe.
class ParquetColumns {
 public:
  virtual ~ParquetColumns() = default;
  virtual std::vector<std::string> column_names() const = 0;
  virtual int64_t num_row_groups() const = 0;
  virtual int64_t group_rows(int64_t group) const = 0;
  /// Returns the columns that pandas' metadata names as the index of a data frame.
  virtual std::vector<size_t> index_columns() const = 0;
  /// Selects columns by their index at the top level of the schema. Returns for each of them true
  /// if it holds lists. Throws UserError for a type that `read` does not support. Supported types
  /// are booleans, integers, floats, decimals, strings, bytes, nulls, dictionaries, and lists of
  /// these.
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

/// Symbols of the module, `extern "C"`. They throw UserError.
using OpenParquetText = void (*)(const char* path, const char* column,
                                 std::unique_ptr<ParquetText>& reader);
using OpenParquetColumns = void (*)(const char* path, std::unique_ptr<ParquetColumns>& reader);
using OpenUnpacked = void (*)(const char* path, const char* codec, uint64_t begin, uint64_t bytes,
                              std::unique_ptr<ByteStream>& stream);
using Crc32 = uint32_t (*)(const void* bytes, size_t size);
constexpr const char* kParquetModule = "libdovetail_parquet.so";
constexpr const char* kParquetTextEntry = "dovetail_open_parquet_text";
constexpr const char* kParquetColumnsEntry = "dovetail_open_parquet_columns";
constexpr const char* kUnpackedEntry = "dovetail_open_unpacked";
constexpr const char* kCrc32Entry = "dovetail_crc32";

}  // namespace dovetail::data
