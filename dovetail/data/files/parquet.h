#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail {

/// The text column of a Parquet file. Opens the module that holds Arrow when first called; throws
/// UserError that names pyarrow when the module or Arrow is not there, and for a file that cannot
/// be read or has no such column.
std::unique_ptr<ParquetText> open_parquet(const std::filesystem::path& path,
                                          const std::string& column);

/// The columns of a Parquet file. Throws as open_parquet does.
std::unique_ptr<ParquetColumns> open_parquet_columns(const std::filesystem::path& path);

/// Bytes [begin, begin + bytes) of a file, unpacked by "gzip", "zstd", "bz2" or "deflate" (without
/// header). Reading throws UserError for damage and for a stream that ends early.
std::unique_ptr<ByteStream> open_unpacked(const std::filesystem::path& path,
                                          const std::string& codec, uint64_t begin, uint64_t bytes);

/// Checksum of gzip and zip.
uint32_t crc32_of(std::string_view bytes);

}  // namespace dovetail
