#include "dovetail/base/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "dovetail/base/error.h"

namespace dovetail {

std::filesystem::path module_path(const std::string& file) {
  Dl_info self{};
  const int found = dladdr(reinterpret_cast<const void*>(&module_path), &self);
  DOVETAIL_CHECK(found != 0, "dladdr does not know its own library");
  return std::filesystem::path(self.dli_fname).parent_path() / file;
}

void* open_module(const std::filesystem::path& module, const char* entry, const std::string& help) {
  void* handle = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw UserError(fmt::format("{} does not load: {}", module.filename().string(), dlerror()),
                    help);
  void* function = dlsym(handle, entry);
  DOVETAIL_CHECK(function != nullptr, "{} has no {}", module.string(), entry);
  return function;
}

}  // namespace dovetail
