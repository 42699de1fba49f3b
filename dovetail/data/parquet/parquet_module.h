#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail {

/// One string column of a Parquet file, read a row group at a time. What libdovetail_data and the module that links
/// Arrow share: neither side's headers reach the other.
class ParquetText {
 public:
  virtual ~ParquetText() = default;
  virtual int64_t num_row_groups() const = 0;
  /// Bytes of the column in the group, decompressed.
  virtual uint64_t group_bytes(int64_t group) const = 0;
  /// The texts of the group with their row in the file; null is left out.
  virtual void read(int64_t group, const std::function<void(int64_t row, std::string_view text)>& visit) = 0;
};

/// A column of a row group: a value a row, or a list of them a row.
struct ColumnValues {
  enum class Kind { kInteger, kReal, kText };
  Kind kind = Kind::kInteger;
  std::vector<int64_t> integers;        ///< also booleans, as 0 and 1
  std::vector<double> reals;            ///< float and double
  std::vector<int32_t> codes;           ///< strings and bytes: which of `words` a value is
  std::vector<std::string_view> words;  ///< they live as long as `owner`
  std::vector<uint64_t> keys;           ///< xxh64 of each of `words`
  std::vector<uint8_t> value_present;   ///< by value, 0 for null
  bool is_list = false;
  std::vector<int64_t> list_begins;   ///< rows + 1 entries: the values of row r are [begins[r], begins[r + 1])
  std::vector<uint8_t> list_present;  ///< by row, 0 for null
  std::shared_ptr<const void> owner;
};

/// Some columns of a Parquet file, read a row group at a time; the others are not touched. Not for two threads at once.
class ParquetColumns {
 public:
  virtual ~ParquetColumns() = default;
  virtual std::vector<std::string> column_names() const = 0;
  virtual int64_t num_row_groups() const = 0;
  virtual int64_t group_rows(int64_t group) const = 0;
  /// Checks that the columns, by their names at the top level, are of a type that `read` gives: booleans, integers,
  /// float, double, strings, bytes, dictionaries and lists of these. Throws UserError. Returns which of them are lists.
  virtual std::vector<bool> select(const std::vector<std::string>& columns) = 0;
  /// The selected columns of the group, in the order of `select`.
  virtual std::vector<ColumnValues> read(int64_t group) = 0;
};

/// Bytes from the first to the last.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Up to `bytes` of the next ones, at least one; 0 at the end.
  virtual size_t read(char* to, size_t bytes) = 0;
};

/// The module's symbols, `extern "C"`. They throw UserError.
using OpenParquetText = void (*)(const char* path, const char* column, std::unique_ptr<ParquetText>& reader);
using OpenParquetColumns = void (*)(const char* path, std::unique_ptr<ParquetColumns>& reader);
using OpenUnpacked = void (*)(const char* path, const char* codec, std::unique_ptr<ByteStream>& stream);
constexpr const char* kParquetModule = "libdovetail_parquet.so";
constexpr const char* kParquetTextEntry = "dovetail_open_parquet_text";
constexpr const char* kParquetColumnsEntry = "dovetail_open_parquet_columns";
constexpr const char* kUnpackedEntry = "dovetail_open_unpacked";

}  // namespace dovetail
