// ctest-labels: threads
#include "dovetail/base/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace dovetail::log_test {
namespace {

// Returns the standard error output of `write`.
template <class Write>
std::string captured(Write write) {
  ::testing::internal::CaptureStderr();
  write();
  return ::testing::internal::GetCapturedStderr();
}

class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log_level(LogLevel::kInfo); }
};

TEST_F(Log, ShowsWhatTheLevelAllows) {
  const auto write_all = [] {
    log_warning("w{}", 1);
    log_info("i{}", 2);
    log_line(LogLevel::kVerbose, "v3");
  };
  set_log_level(LogLevel::kQuiet);
  EXPECT_EQ(captured(write_all), "warning: w1\n");
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(captured(write_all), "warning: w1\ni2\n");
  set_log_level(LogLevel::kVerbose);
  EXPECT_EQ(captured(write_all), "warning: w1\ni2\nv3\n");
}

TEST_F(Log, LinesOfThreadsAndProcessesStayWhole) {
  constexpr int kWriters = 4, kLines = 500;
  const auto write_lines = [](int writer) {
    for (int i = 0; i < kLines; ++i)
      log_info("{}", std::string(200, static_cast<char>('a' + writer)));
  };
  const std::string out = captured([&] {
    const pid_t child = ::fork();
    if (child == 0) {
      write_lines(kWriters);
      ::_exit(0);
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < kWriters; ++i) threads.emplace_back(write_lines, i);
    for (std::thread& thread : threads) thread.join();
    ::waitpid(child, nullptr, 0);
  });
  std::map<std::string, int> counts;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) ++counts[line];
  EXPECT_EQ(counts.size(), static_cast<size_t>(kWriters + 1));
  for (int i = 0; i <= kWriters; ++i)
    EXPECT_EQ(counts[std::string(200, static_cast<char>('a' + i))], kLines) << i;
}

}  // namespace
}  // namespace dovetail::log_test
