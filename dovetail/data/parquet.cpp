#include "dovetail/data/parquet.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "dovetail/base/error.h"

namespace dovetail {
namespace {

std::filesystem::path folder_of_this_library() {
  Dl_info info{};
  const int found = dladdr(reinterpret_cast<const void*>(&folder_of_this_library), &info);
  DOVETAIL_CHECK(found != 0, "dladdr does not know its own library");
  return std::filesystem::path(info.dli_fname).parent_path();
}

OpenParquetText load_module() {
  const auto module = folder_of_this_library() / kParquetModule;
  void* handle = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw UserError(
        fmt::format("reading Parquet needs {} and the Arrow libraries of pyarrow: {}", kParquetModule, dlerror()),
        "pip install 'pyarrow==26.*' beside torch, or convert the data to .jsonl");
  void* entry = dlsym(handle, kParquetEntry);
  DOVETAIL_CHECK(entry != nullptr, "{} has no {}", module.string(), kParquetEntry);
  return reinterpret_cast<OpenParquetText>(entry);
}

}  // namespace

std::unique_ptr<ParquetText> open_parquet(const std::filesystem::path& path, const std::string& column) {
  static const OpenParquetText open = load_module();  // tried again after a throw
  std::unique_ptr<ParquetText> reader;
  open(path.c_str(), column.c_str(), reader);
  return reader;
}

}  // namespace dovetail
