#pragma once

#include <cstdlib>
#include <filesystem>

namespace dovetail::test {

/// Folder tests/ of the checkout, by DOVETAIL_TEST_DATA or else from the working directory.
/// `__FILE__` does not name it: batches and the compiler cache make that path relative.
inline std::filesystem::path tests_folder() {
  const char* data = std::getenv("DOVETAIL_TEST_DATA");
  return data != nullptr ? std::filesystem::path(data).parent_path()
                         : std::filesystem::absolute("tests");
}

}  // namespace dovetail::test
