#include "dovetail/data/parquet.h"

#include "dovetail/base/module.h"

namespace dovetail {

std::unique_ptr<ParquetText> open_parquet(const std::filesystem::path& path, const std::string& column) {
  // Tried again after a throw.
  static const auto open = reinterpret_cast<OpenParquetText>(
      open_module(module_path(kParquetModule), kParquetEntry,
                  "reading Parquet needs the Arrow libraries of pyarrow: pip install 'pyarrow==26.*' beside torch, or "
                  "convert the data to .jsonl"));
  std::unique_ptr<ParquetText> reader;
  open(path.c_str(), column.c_str(), reader);
  return reader;
}

}  // namespace dovetail
