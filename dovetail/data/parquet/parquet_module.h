#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

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

/// The module's one symbol, `extern "C"`. Throws UserError.
using OpenParquetText = void (*)(const char* path, const char* column, std::unique_ptr<ParquetText>& reader);
constexpr const char* kParquetModule = "libdovetail_parquet.so";
constexpr const char* kParquetEntry = "dovetail_open_parquet_text";

}  // namespace dovetail
