#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dovetail/comm/all_to_all.h"
#include "dovetail/comm/group.h"
#include "dovetail/comm/mesh.h"
#include "world.h"

namespace dovetail::comm::world_test {
namespace {

using ::testing::HasSubstr;

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

/// In a 2 x 2 mesh each rank exchanges rows along its expert axis. One rank is killed during this.
/// Its neighbour notices in that all-to-all. Ranks of the other row notice in a sum over the data
/// axis or in the world. Each writes how long after the death it noticed.
TEST(Rank, LosesOneInAllToAll) {
  if (!is_rank()) GTEST_SKIP() << "runs only as a rank of World.*";
  const auto world = world_from_environment();
  const Mesh mesh(world, {{"data", 2}, {"expert", 2}});
  const Deaths deaths;
  const auto& expert = mesh.group("expert");
  const auto x =
      torch::ones({16 << 10, 256});  // 16 MB: takes long enough to be in the middle of it
  auto gradient = torch::ones({1000});
  std::thread killer;
  world->barrier();
  if (world->rank() == deaths.dead)
    killer = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      deaths.die();
    });
  try {
    for (;;) {
      all_to_all(x, expert);
      mesh.group("data")->all_reduce(gradient);
    }
  } catch (const CommError& error) {
    deaths.known(world->rank(), error);
  }
  if (killer.joinable()) killer.join();
}

/// Rank 0 stops with its sockets full, so that rank 1 is in the middle of sending when rank 0 is
/// killed. Gloo would leave that call asleep until the timeout.
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
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(45))
      << "waited for the timeout of 60 s";
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
    const auto statuses =
        world.run("LosesOne", restart++, {fmt::format("DOVETAIL_TEST_DEAD={}", dead)});
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
  for (int dead = 0; dead < world.size(); ++dead)
    world.expect_death_is_known("LosesOneInAllToAll", dead, dead);
}

TEST(World, AProcessThatDiesInTheMiddleOfATransferIsNoticedBeforeTheTimeout) {
  if (is_rank()) GTEST_SKIP() << "this is a rank";
  const auto statuses = World(2).run("LosesOneThatDoesNotRead", 0, {});
  EXPECT_TRUE(WIFSIGNALED(statuses[0]) && WTERMSIG(statuses[0]) == SIGKILL);
  EXPECT_EQ(statuses[1], 0);
}

}  // namespace
}  // namespace dovetail::comm::world_test
