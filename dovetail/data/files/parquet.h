#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {

/// Opens the text column of a Parquet file. The first call loads the module that links Arrow.
/// Throws UserError that names pyarrow if the module or Arrow is missing. Throws UserError if the
/// file cannot be read or has no such column.
std::unique_ptr<ParquetText> open_parquet(const std::filesystem::path& path,
                                          const std::string& column);

/// Opens the columns of a Parquet file. Throws as open_parquet does.
std::unique_ptr<ParquetColumns> open_parquet_columns(const std::filesystem::path& path);

/// Opens bytes [begin, begin + bytes) of a file for decompression by "gzip", "zstd", "bz2" or
/// "deflate" (without header). Reading throws UserError for damage and for a stream that ends
/// early.
std::unique_ptr<ByteStream> open_unpacked(const std::filesystem::path& path,
                                          const std::string& codec, uint64_t begin, uint64_t bytes);

/// Returns the CRC-32 checksum that gzip and zip use.
uint32_t crc32_of(std::string_view bytes);

}  // namespace dovetail::data
