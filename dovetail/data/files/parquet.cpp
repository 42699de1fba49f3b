#include "dovetail/data/files/parquet.h"

#include "dovetail/base/module.h"

namespace dovetail::data {
namespace {

void* entry(const char* name) {
  return open_module(
      module_path(kParquetModule), name,
      "reading Parquet and compressed files needs the Arrow libraries of pyarrow: pip install "
      "'pyarrow==26.*' next to torch. Or convert the data to text (.jsonl, .tsv)");
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
