#pragma once

#include <cstdlib>
#include <filesystem>

namespace dovetail::test {

/// Returns the folder tests/ of the checkout, by DOVETAIL_TEST_DATA or else from the working
/// directory. `__FILE__` cannot replace it: batched compilation and the compiler cache make that
/// path relative.
inline std::filesystem::path tests_folder() {
  const char* data = std::getenv("DOVETAIL_TEST_DATA");
  return data != nullptr ? std::filesystem::path(data).parent_path()
                         : std::filesystem::absolute("tests");
}

}  // namespace dovetail::test
