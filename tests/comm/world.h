#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

extern char** environ;

namespace dovetail {

/// World of processes that find each other as in torchrun. This process is the agent that hosts the
/// store.
class World {
 public:
  explicit World(int size) : size_(size) {
    c10d::TCPStoreOptions options;
    options.port = 0;  // the system chooses a free port, which no other process can take
    options.isServer = true;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  int size() const { return size_; }

  /// Returns the wait statuses of all ranks. The ranks run the test `name` below with the variables
  /// `more`.
  std::vector<int> run(const std::string& name, int restart,
                       const std::vector<std::string>& more) const {
    std::vector<pid_t> pids;
    for (int rank = 0; rank < size_; ++rank) {
      std::vector<std::string> variables = {fmt::format("RANK={}", rank),
                                            fmt::format("WORLD_SIZE={}", size_),
                                            fmt::format("LOCAL_WORLD_SIZE={}", size_),
                                            "MASTER_ADDR=127.0.0.1",
                                            fmt::format("MASTER_PORT={}", store_->getPort()),
                                            "TORCHELASTIC_USE_AGENT_STORE=True",
                                            fmt::format("TORCHELASTIC_RESTART_COUNT={}", restart),
                                            "OMP_NUM_THREADS=1",
                                            "DOVETAIL_TEST_RANK=1"};
      variables.insert(variables.end(), more.begin(), more.end());
      std::vector<char*> environment;
      for (auto& variable : variables) environment.push_back(variable.data());
      for (char** e = environ; *e; ++e)
        if (!std::string_view(*e).starts_with("OMP_NUM_THREADS=")) environment.push_back(*e);
      environment.push_back(nullptr);
      const auto filter = fmt::format("--gtest_filter=Rank.{}", name);
      const char* const arguments[] = {"/proc/self/exe", filter.c_str(), "--gtest_brief=1",
                                       nullptr};
      pid_t pid = -1;
      EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr,
                              const_cast<char* const*>(arguments), environment.data()),
                0);
      pids.push_back(pid);
    }
    std::vector<int> statuses(pids.size());
    for (size_t r = 0; r < pids.size(); ++r) {
      ::waitpid(pids[r], &statuses[r], WUNTRACED);
      if (!WIFSTOPPED(statuses[r])) continue;
      // The rank stopped itself during an operation. It is killed once the other ranks wait for it.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ::kill(pids[r], SIGKILL);
      ::waitpid(pids[r], &statuses[r], 0);
    }
    return statuses;
  }

  /// Runs the test `name`, which uses a Deaths. Expects that every other rank notices the death
  /// within a second.
  void expect_death_is_known(const std::string& name, int restart, int dead) const {
    std::string folder = ::testing::TempDir() + "deaths_XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    const auto time_of = [&](const std::string& file) {
      double time = 0;
      std::ifstream(folder + "/" + file) >> time;
      return time;
    };
    const auto statuses =
        run(name, restart,
            {fmt::format("DOVETAIL_TEST_DEAD={}", dead), "DOVETAIL_TEST_FOLDER=" + folder});
    for (int r = 0; r < size_; ++r) {
      const int status = statuses[static_cast<size_t>(r)];
      if (r == dead) {
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
        continue;
      }
      EXPECT_EQ(status, 0) << "rank " << r;
      const double after_s = time_of(fmt::format("rank{}", r)) - time_of("death");
      EXPECT_GT(after_s, 0);
      EXPECT_LT(after_s, 1.0) << "rank " << r << " of " << size_ << " when rank " << dead
                              << " died";
      ::testing::Test::RecordProperty(fmt::format("death_of_{}_known_by_{}_s", dead, r),
                                      fmt::format("{:.3f}", after_s));
    }
    std::filesystem::remove_all(folder);
  }

 private:
  int size_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

/// Returns true if this process is a rank of a World. Tests of the suite Rank run only in these.
inline bool is_rank() { return std::getenv("DOVETAIL_TEST_RANK") != nullptr; }

/// Used in a rank of `World::expect_death_is_known`. Records the rank that dies, the time of its
/// death and the times of notice.
struct Deaths {
  int dead = std::atoi(std::getenv("DOVETAIL_TEST_DEAD"));
  std::string folder = std::getenv("DOVETAIL_TEST_FOLDER");

  void die() const {
    write_time("death");
    ::raise(SIGKILL);
  }
  /// `error` is what rank `rank` caught.
  void known(int rank, const std::exception& error) const {
    write_time(fmt::format("rank{}", rank));
    EXPECT_THAT(error.what(), ::testing::HasSubstr(fmt::format("rank {} stopped answering", dead)));
  }

 private:
  void write_time(const std::string& file) const {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    std::ofstream(folder + "/" + file) << fmt::format("{:.6f}", now.count());
  }
};

}  // namespace dovetail
