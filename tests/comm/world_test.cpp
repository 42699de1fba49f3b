#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "dovetail/comm/all_to_all.h"
#include "dovetail/comm/group.h"
#include "dovetail/comm/mesh.h"

extern char** environ;

namespace dovetail {
namespace {

using testing::HasSubstr;

/// Processes that find one another as torchrun's do: this one is the agent that hosts the store.
class World {
 public:
  explicit World(int size) : size_(size) {
    c10d::TCPStoreOptions options;
    options.port = 0;  // the system chooses, and no other process can take it in between
    options.isServer = true;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  /// The wait statuses of all ranks, which run the test `name` below with a few more variables.
  std::vector<int> run(const std::string& name, int restart, const std::vector<std::string>& more) const {
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
      const char* const arguments[] = {"/proc/self/exe", filter.c_str(), "--gtest_brief=1", nullptr};
      pid_t pid = -1;
      EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, const_cast<char* const*>(arguments),
                              environment.data()),
                0);
      pids.push_back(pid);
    }
    std::vector<int> statuses(pids.size());
    for (size_t r = 0; r < pids.size(); ++r) {
      ::waitpid(pids[r], &statuses[r], WUNTRACED);
      if (!WIFSTOPPED(statuses[r])) continue;
      // It stopped itself in the middle of something: killed once the others are waiting for it.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ::kill(pids[r], SIGKILL);
      ::waitpid(pids[r], &statuses[r], 0);
    }
    return statuses;
  }

 private:
  int size_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

bool is_rank() { return std::getenv("DOVETAIL_TEST_RANK") != nullptr; }

TEST(Rank, Sums) {
  if (!is_rank()) GTEST_SKIP() << "runs only as a rank of World.*";
  const auto group = world_from_environment();
  ASSERT_EQ(group->size(), 3);
  auto tensor = torch::full({1000}, group->rank() + 1, at::kDouble);
  group->all_reduce(tensor);
  EXPECT_TRUE(tensor.eq(6).all().item<bool>());
  group->barrier();
}

TEST(Rank, LosesOne) {
  if (!is_rank()) GTEST_SKIP() << "runs only as a rank of World.*";
  const auto group = world_from_environment();
  const int dead = std::atoi(std::getenv("DOVETAIL_TEST_DEAD"));
  try {
    for (int round = 0;; ++round) {
      if (round == 3 && group->rank() == dead) ::raise(SIGKILL);
      group->barrier();
    }
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {} stopped answering", dead)));
  }
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// In a mesh of 2 x 2, each rank exchanges rows along its own expert axis while one is killed in the middle of it: the
/// rank beside it notices in that all-to-all, those of the other row in a sum over the data axis or in the world.
/// Each writes how long after the death it knew.
TEST(Rank, LosesOneInAllToAll) {
  if (!is_rank()) GTEST_SKIP() << "runs only as a rank of World.*";
  const auto world = world_from_environment();
  const Mesh mesh(world, {{"data", 2}, {"expert", 2}});
  const int dead = std::atoi(std::getenv("DOVETAIL_TEST_DEAD"));
  const std::string folder = std::getenv("DOVETAIL_TEST_FOLDER");
  const auto& expert = mesh.group("expert");
  const auto x = torch::ones({16 << 10, 256});  // 16 MB: takes long enough to be in the middle of it
  auto gradient = torch::ones({1000});
  std::thread killer;
  world->barrier();
  if (world->rank() == dead)
    killer = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      std::ofstream(folder + "/death") << fmt::format("{:.6f}", seconds_since_epoch());
      ::raise(SIGKILL);
    });
  try {
    for (;;) {
      all_to_all(x, expert);
      mesh.group("data")->all_reduce(gradient);
    }
  } catch (const CommError& error) {
    std::ofstream(fmt::format("{}/rank{}", folder, world->rank())) << fmt::format("{:.6f}", seconds_since_epoch());
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {} stopped answering", dead)));
  }
  if (killer.joinable()) killer.join();
}

/// Rank 0 stops with its sockets full, so that rank 1 is in the middle of sending when rank 0 is killed. Gloo would
/// leave that call asleep until the timeout.
TEST(Rank, LosesOneThatDoesNotRead) {
  if (!is_rank()) GTEST_SKIP() << "runs only as a rank of World.*";
  const auto group = world_from_environment();
  std::thread stop;
  if (group->rank() == 0)
    stop = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ::kill(::getpid(), SIGSTOP);
    });
  auto tensor = torch::ones({16 << 20});
  const auto start = std::chrono::steady_clock::now();
  try {
    for (;;) group->broadcast(tensor, 1);
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 stopped answering"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(45)) << "waited for the timeout of 60 s";
  if (stop.joinable()) stop.join();
}

TEST(World, ProcessesSumAndMeetAgainAfterARestart) {
  if (is_rank()) GTEST_SKIP() << "this is a rank";
  const World world(3);
  for (const int restart : {0, 1})
    for (const int status : world.run("Sums", restart, {})) EXPECT_EQ(status, 0);
}

TEST(World, AKilledProcessIsNamedByAllOthersAlsoWhenItIsRankZero) {
  if (is_rank()) GTEST_SKIP() << "this is a rank";
  const World world(3);
  int restart = 0;
  for (const int dead : {0, 2}) {
    const auto statuses = world.run("LosesOne", restart++, {fmt::format("DOVETAIL_TEST_DEAD={}", dead)});
    for (int r = 0; r < 3; ++r) {
      const int status = statuses[static_cast<size_t>(r)];
      EXPECT_TRUE(r == dead ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0)
          << "rank " << r << ": " << status;
    }
  }
}

TEST(World, ARankKilledInAllToAllIsNamedByAllOthersWithinASecond) {
  if (is_rank()) GTEST_SKIP() << "this is a rank";
  const World world(4);
  for (int dead = 0; dead < 4; ++dead) {
    std::string folder = testing::TempDir() + "all_to_all_XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    const auto time_of = [&](const std::string& name) {
      double time = 0;
      std::ifstream(folder + "/" + name) >> time;
      return time;
    };
    const auto statuses = world.run("LosesOneInAllToAll", dead,
                                    {fmt::format("DOVETAIL_TEST_DEAD={}", dead), "DOVETAIL_TEST_FOLDER=" + folder});
    for (int r = 0; r < 4; ++r) {
      const int status = statuses[static_cast<size_t>(r)];
      if (r == dead) {
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
        continue;
      }
      EXPECT_EQ(status, 0) << "rank " << r;
      const double after_s = time_of(fmt::format("rank{}", r)) - time_of("death");
      EXPECT_GT(after_s, 0);
      EXPECT_LT(after_s, 1.0) << "rank " << r << " of " << 4 << " when rank " << dead << " died";
      RecordProperty(fmt::format("death_of_{}_known_by_{}_s", dead, r), fmt::format("{:.3f}", after_s));
    }
    std::filesystem::remove_all(folder);
  }
}

TEST(World, AProcessThatDiesInTheMiddleOfATransferIsNoticedBeforeTheTimeout) {
  if (is_rank()) GTEST_SKIP() << "this is a rank";
  const auto statuses = World(2).run("LosesOneThatDoesNotRead", 0, {});
  EXPECT_TRUE(WIFSIGNALED(statuses[0]) && WTERMSIG(statuses[0]) == SIGKILL);
  EXPECT_EQ(statuses[1], 0);
}

}  // namespace
}  // namespace dovetail
