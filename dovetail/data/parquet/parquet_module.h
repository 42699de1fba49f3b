#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail {

/// One string column of a Parquet file, read a row group at a time. What libdovetail_data and the
/// module that links Arrow share: neither side's headers reach the other.
class ParquetText {
 public:
  virtual ~ParquetText() = default;
  virtual int64_t num_row_groups() const = 0;
  /// Bytes of the column in the group, decompressed.
  virtual uint64_t group_bytes(int64_t group) const = 0;
  /// The texts of the group with their row in the file, nullopt for null. They are bytes, maybe not
  /// UTF-8.
  virtual void read(
      int64_t group,
      const std::function<void(int64_t row, std::optional<std::string_view> text)>& visit) = 0;
};

/// A column of a row group: a value a row, or a list of them a row.
struct ColumnValues {
  enum class Kind { kInteger, kReal, kText };
  Kind kind = Kind::kInteger;
  std::vector<int64_t> integers;  ///< also booleans, as 0 and 1
  bool booleans = false;          ///< they are the `integers`
  std::vector<double> reals;      ///< half, float and double
  std::vector<int32_t>
      codes;  ///< which of `words` a value is: strings, bytes, decimals, uint64 from 2^63 on
  std::vector<std::string_view> words;  ///< they live as long as `owner`
  bool words_are_numbers = false;       ///< decimals and uint64
  std::vector<uint64_t> keys;           ///< xxh64 of each of `words`
  std::vector<uint8_t> value_present;   ///< by value, 0 for null
  bool is_list = false;
  std::vector<int64_t>
      list_begins;  ///< rows + 1 entries: the values of row r are [begins[r], begins[r + 1])
  std::vector<uint8_t> list_present;  ///< by row, 0 for null
  std::shared_ptr<const void> owner;
};

/// Some columns of a Parquet file, read a row group at a time; the others are not touched. Not for
/// two threads at once.
class ParquetColumns {
 public:
  virtual ~ParquetColumns() = default;
  virtual std::vector<std::string> column_names() const = 0;
  virtual int64_t num_row_groups() const = 0;
  virtual int64_t group_rows(int64_t group) const = 0;
  /// Columns that pandas' metadata names as the index of a frame.
  virtual std::vector<size_t> index_columns() const = 0;
  /// Checks that the columns, by their places at the top level, are of a type that `read` gives:
  /// booleans, integers, floats, decimals, strings, bytes, nulls, dictionaries and lists of these.
  /// Throws UserError. Returns which of them are lists.
  virtual std::vector<bool> select(const std::vector<size_t>& columns) = 0;
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

}  // namespace dovetail
