#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dovetail/io/checkpoint.h"

extern char** environ;

namespace dovetail::test {

constexpr int kSavesFd = 100;  // not standard output, which gtest uses
constexpr const char* kChildFolder = "DOVETAIL_TEST_SAVE_FOREVER";

/// Starts this program as a child that runs only the tests of `filter`. In the child kChildFolder
/// is `folder`, and kSavesFd writes to `output`.
inline pid_t start_child(const std::string& filter, const std::filesystem::path& folder,
                         int output) {
  std::vector<std::string> variables = {std::string(kChildFolder) + "=" + folder.string(),
                                        "OMP_NUM_THREADS=1"};
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
  EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr,
                          const_cast<char* const*>(arguments), environment.data()),
            0);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

/// Starts a child with the tests of `filter` and kills it; repeats this `rounds` times. The kill
/// comes at a random time below `longest` after the child's first save into `folder`. So a slow
/// start (a sanitizer) does not end all rounds before a save. After each round `check` gets the
/// steps of the checkpoints in `folder`. At least one must exist, and the newest must not be older
/// than in the previous round.
inline void kill_at_random_moments(const std::string& filter, const std::filesystem::path& folder,
                                   int rounds, std::chrono::microseconds longest,
                                   const std::function<void(const std::vector<int64_t>&)>& check) {
  std::mt19937 random(11);
  int64_t newest = -1;
  for (int round = 0; round < rounds; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = start_child(filter, folder, ends[1]);
    ::close(ends[1]);
    char byte = 0;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1) << "the child ended before its first save";
    std::this_thread::sleep_for(std::chrono::microseconds(random() % longest.count()));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ::close(ends[0]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
    const std::vector<int64_t> found = io::CheckpointFolder(folder, {}).steps();
    ASSERT_FALSE(found.empty());
    check(found);
    EXPECT_GE(found.back(), newest) << "a checkpoint was lost";
    newest = found.back();
  }
}

}  // namespace dovetail::test
