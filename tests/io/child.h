#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

extern char** environ;

namespace dovetail::test {

constexpr int kSavesFd = 100;  // not standard output, where gtest speaks
constexpr const char* kChildFolder = "DOVETAIL_TEST_SAVE_FOREVER";

/// This program again, with the tests of `filter` alone: kChildFolder is `folder` there, and kSavesFd writes to
/// `output`.
inline pid_t start_child(const std::string& filter, const std::filesystem::path& folder, int output) {
  std::vector<std::string> variables = {std::string(kChildFolder) + "=" + folder.string(), "OMP_NUM_THREADS=1"};
  std::vector<char*> environment;
  for (auto& variable : variables) environment.push_back(variable.data());
  for (char** e = environ; *e; ++e) environment.push_back(*e);
  environment.push_back(nullptr);
  const std::string tests = "--gtest_filter=" + filter;
  const char* const arguments[] = {"/proc/self/exe", tests.c_str(), "--gtest_brief=1", nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, kSavesFd);
  pid_t pid = -1;
  EXPECT_EQ(
      ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, const_cast<char* const*>(arguments), environment.data()),
      0);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

}  // namespace dovetail::test
