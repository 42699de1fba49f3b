#include "dovetail/data/files/parquet.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/module.h"
#include "dovetail/data/files/utf8.h"

namespace dovetail::data {
namespace {

void* entry(const char* name) {
  return open_module(
      module_path(kParquetModule), name,
      "reading Parquet and compressed files needs the Arrow libraries of pyarrow: pip install "
      "'pyarrow==26.*' next to torch. Or convert the data to text (.jsonl, .tsv)");
}

/// Returns true if all strings in `value` are UTF-8, which nlohmann::json does not check.
bool is_text(const nlohmann::json& value) {
  if (value.is_string()) return is_valid_utf8(value.get_ref<const std::string&>());
  return !value.is_structured() ||
         std::ranges::all_of(value, [](const nlohmann::json& part) { return is_text(part); });
}

}  // namespace

std::unique_ptr<ParquetText> open_parquet(const std::filesystem::path& path,
                                          const std::string& column) {
  // A static initializer that throws is tried again in the next call.
  static const auto open = reinterpret_cast<OpenParquetText>(entry(kParquetTextEntry));
  std::unique_ptr<ParquetText> reader;
  open(path.c_str(), column.c_str(), reader);
  return reader;
}

std::unique_ptr<ParquetColumns> open_parquet_columns(const std::filesystem::path& path) {
  static const auto open = reinterpret_cast<OpenParquetColumns>(entry(kParquetColumnsEntry));
  std::unique_ptr<ParquetColumns> reader;
  open(path.c_str(), reader);
  return reader;
}

nlohmann::json read_parquet_records(const std::filesystem::path& path,
                                    const std::vector<std::string>& columns) {
  static const auto read = reinterpret_cast<ReadParquetRecords>(entry(kParquetRecordsEntry));
  auto records = nlohmann::json::array();
  read(path.c_str(), columns, records);
  for (size_t row = 0; row < records.size(); ++row) {
    if (!is_text(records[row]))
      throw UserError("a string is not UTF-8", "write the file again, with text in UTF-8",
                      fmt::format("{}: row {}", path.string(), row));
  }
  return records;
}

std::unique_ptr<ByteStream> open_unpacked(const std::filesystem::path& path,
                                          const std::string& codec, uint64_t begin,
                                          uint64_t bytes) {
  static const auto open = reinterpret_cast<OpenUnpacked>(entry(kUnpackedEntry));
  std::unique_ptr<ByteStream> stream;
  open(path.c_str(), codec.c_str(), begin, bytes, stream);
  return stream;
}

uint32_t crc32_of(std::string_view bytes) {
  static const auto crc32 = reinterpret_cast<Crc32>(entry(kCrc32Entry));
  return crc32(bytes.data(), bytes.size());
}

}  // namespace dovetail::data
