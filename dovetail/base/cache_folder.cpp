#include "dovetail/base/cache_folder.h"

#include <cstdlib>

#include "dovetail/base/error.h"

namespace dovetail {
namespace {

std::filesystem::path variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::filesystem::path cache_folder(const std::string& name) {
  if (const auto cache = variable("DOVETAIL_CACHE"); !cache.empty()) return cache / name;
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return cache / "dovetail" / name;
  const auto home = variable("HOME");
  user_check(
      !home.empty(),
      "neither DOVETAIL_CACHE, XDG_CACHE_HOME nor HOME is set, to keep measured times under");
  return home / ".cache" / "dovetail" / name;
}

}  // namespace dovetail
