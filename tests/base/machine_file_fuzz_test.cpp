// ctest-labels: fuzz
// Mutated files of measured speeds are read or refused.
#include <gtest/gtest.h>

#include <string>

#include "dovetail/base/file.h"
#include "dovetail/base/machine_file.h"
#include "tests/base/temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::machine_file_fuzz_test {
namespace {

TEST(MachineFileFuzz, FilesAreReadOrRefused) {
  const test::TemporaryFolder folder;
  const nlohmann::json machine = {{"cpu", "one of 64 cores"}};
  MachineFile file(folder.path(), machine);
  file.put("kmeans", {1.5, 2.5});
  file.save();
  test::fuzz({read_file(file.file())}, 5000, 61, [&](const std::string& input) {
    test::overwrite(file.file(), input);
    MachineFile read(folder.path(), machine);
    read.find("kmeans");
  });
}

}  // namespace
}  // namespace dovetail::machine_file_fuzz_test
