#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {

/// Opens `column`, a column of strings, in a Parquet file. The first call loads
/// libdovetail_parquet.so, the part of the program that links Arrow. Throws UserError if that
/// library or Arrow is missing; the error says how to install pyarrow. Also throws if the file
/// cannot be read or has no such column.
std::unique_ptr<ParquetText> open_parquet(const std::filesystem::path& path,
                                          const std::string& column);

/// Opens a Parquet file, to read any of its columns. Throws UserError if Arrow is missing or the
/// file cannot be read.
std::unique_ptr<ParquetColumns> open_parquet_columns(const std::filesystem::path& path);

/// Reads all rows of a Parquet file as a JSON array of objects, whose keys are `columns`. A list
/// becomes an array, a structure an object, a missing value null. Meant for small files: everything
/// is in memory. Throws UserError if Arrow is missing, the file cannot be read or a column is
/// missing. Also throws for a value that JSON does not have, such as a timestamp or text that is
/// not UTF-8.
nlohmann::json read_parquet_records(const std::filesystem::path& path,
                                    const std::vector<std::string>& columns);

/// Opens bytes [begin, begin + bytes) of a file, which are compressed, as a stream of the
/// decompressed bytes. `codec` is "gzip", "zstd", "bz2" or "deflate" (raw, without a header).
/// Reading from the stream throws UserError if the data is damaged or ends early.
std::unique_ptr<ByteStream> open_unpacked(const std::filesystem::path& path,
                                          const std::string& codec, uint64_t begin, uint64_t bytes);

/// Returns the CRC-32 checksum of `bytes`, with the polynomial that gzip and zip use.
uint32_t crc32_of(std::string_view bytes);

}  // namespace dovetail::data
