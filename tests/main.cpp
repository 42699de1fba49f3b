// main() of every test program. `--file=loader_test` runs the tests of loader_test.cpp alone, for
// its ctest entry. An explicit --gtest_filter wins, as in a death test that starts the program
// again. Each test starts from the same seed: libtorch draws another one for each process.

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace {

/// gtest filter that names each test of `file`, a source without folder and suffix. Empty if no
/// test is in it.
std::string filter_by_file(std::string_view file) {
  std::string filter;
  const auto& tests = *testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const auto& suite = *tests.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const auto& test = *suite.GetTestInfo(j);
      if (std::filesystem::path(test.file()).stem() != file) continue;
      filter += std::string(suite.name()) + '.' + test.name() + ':';
    }
  }
  return filter;
}

class SeedsEachTest : public testing::EmptyTestEventListener {
  /// Only the CPU's generator: at::manual_seed would look for a GPU before a test has loaded
  /// torch's CUDA library.
  void OnTestStart(const testing::TestInfo&) override {
    auto generator = at::detail::getDefaultCPUGenerator();
    generator.set_current_seed(0);
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view option = "--file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(option) || testing::GTEST_FLAG(filter) != "*") continue;
    const auto filter = filter_by_file(argument.substr(option.size()));
    if (filter.empty()) {
      std::fprintf(stderr, "error: no test in a file named %s.cpp\n", argv[i] + option.size());
      return 2;
    }
    testing::GTEST_FLAG(filter) = filter;
  }
  testing::UnitTest::GetInstance()->listeners().Append(new SeedsEachTest);  // the list owns it
  return RUN_ALL_TESTS();
}
