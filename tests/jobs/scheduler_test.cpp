// Distribution of shards under a virtual clock. Law: every shard counts once, whatever happens to
// leases.
#include "dovetail/jobs/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/jobs/partition.h"

namespace dovetail::jobs::scheduler_test {
namespace {

enum class Mishap { kNone, kThrow, kSilence, kTwice, kLate };

/// Simulated devices with given speeds, which compute nothing.
struct World {
  struct Event {
    double at_s;
    Lease lease;
    Mishap mishap;
    bool operator>(const Event& other) const { return at_s > other.at_s; }
  };
  struct Outcome {
    std::vector<std::vector<size_t>> counted;  ///< devices whose result counts, by shard
    std::vector<int64_t> computed;             ///< number of shards that each device delivered
    double seconds = 0;
  };

  Outcome iterate(Scheduler& scheduler, int64_t shards, int64_t rows = 100) {
    Outcome outcome{.counted = std::vector<std::vector<size_t>>(static_cast<size_t>(shards)),
                    .computed = std::vector<int64_t>(truth.size(), 0)};
    const double begun_s = now_s;
    ++iteration;
    scheduler.begin(std::vector<int64_t>(static_cast<size_t>(shards), rows), now_s);
    while (!scheduler.done()) {
      scheduler.expire(now_s);
      for (int time = 0; time < 2; ++time)  // the first time, a device may give a lease up
        for (size_t d = 0; d < truth.size(); ++d)
          for (int64_t slot = 0; slot < (slots_of.empty() ? slots : slots_of[d]); ++slot)
            if (!busy.contains({d, slot})) ask(scheduler, d, slot, rows);
      const double wake_s = scheduler.expire(now_s);
      now_s = std::min(wake_s, events.empty() ? wake_s : events.front().at_s);
      if (!std::isfinite(now_s)) throw std::logic_error("nobody does anything");
      while (!events.empty() && events.front().at_s <= now_s) happen(scheduler, outcome);
      for (const auto& [begin, count, device] : scheduler.take_counted())
        for (int64_t i = begin; i < begin + count; ++i)
          outcome.counted[static_cast<size_t>(i)].push_back(device);
    }
    outcome.seconds = now_s - begun_s;
    return outcome;
  }

  void ask(Scheduler& scheduler, size_t d, int64_t slot, int64_t rows) {
    const auto lease = scheduler.next(d, slot, now_s);
    if (!lease) return;
    const Mishap what = mishap(d);
    const double takes_s =
        truth[d].start_s + truth[d].row_s * static_cast<double>(lease->count * rows);
    const bool long_gone = what == Mishap::kSilence || what == Mishap::kLate;
    events.push_back({now_s + takes_s * (long_gone ? 20 : 1), *lease, what});
    std::ranges::push_heap(events, std::greater());
    busy.insert({d, slot});
  }

  void happen(Scheduler& scheduler, Outcome& outcome) {
    std::ranges::pop_heap(events, std::greater());
    const Event event = events.back();
    events.pop_back();
    busy.erase({event.lease.device, event.lease.slot});
    if (event.mishap == Mishap::kSilence) return;
    if (event.mishap == Mishap::kThrow) {
      EXPECT_TRUE(scheduler.fail(event.lease, event.lease.begin, 1, "it was told to"));
      return;
    }
    const int64_t end = event.lease.begin + event.lease.count;
    for (int64_t begin = event.lease.begin; begin < end;) {
      int64_t count = 1;  // further shards up to a verified one, which is delivered alone
      while (event.lease.iteration == iteration && !scheduler.is_verified(begin) &&
             count <= event.lease.id % 3 && begin + count < end &&
             !scheduler.is_verified(begin + count))
        ++count;
      for (int time = 0; time < (event.mishap == Mishap::kTwice ? 2 : 1); ++time)
        scheduler.deliver(event.lease, begin, count, now_s, digest(event.lease.device));
      begin += count;
    }
    outcome.computed[event.lease.device] += event.lease.count;
  }

  std::vector<Speed> truth;
  int64_t slots = 1;
  std::vector<int64_t> slots_of = {};  ///< by device; empty: `slots` of each
  std::function<Mishap(size_t)> mishap = [](size_t) { return Mishap::kNone; };
  std::function<uint64_t(size_t)> digest = [](size_t) { return 0; };
  double now_s = 0;
  int64_t iteration = 0;
  std::vector<Event> events = {};
  std::set<std::pair<size_t, int64_t>> busy = {};
};

std::vector<SchedulerDevice> devices(size_t count, int64_t slots = 1) {
  std::vector<SchedulerDevice> list;
  for (size_t i = 0; i < count; ++i)
    list.push_back({.name = fmt::format("device {}", i), .slots = slots});
  return list;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

TEST(Scheduler, CountsEveryShardOnceWhateverHappens) {
  std::mt19937 random(5);
  int mishaps = 0;
  for (int i = 0; i < 400; ++i) {
    World world{.slots = 1 + static_cast<int64_t>(random() % 3)};
    for (size_t d = 0, n = 2 + random() % 3; d < n; ++d)
      world.truth.push_back(
          {.start_s = random() % 2 * 0.01, .row_s = 1e-4 * static_cast<double>(1 + random() % 20)});
    world.mishap = [&](size_t) {
      if (random() % 4 != 0) return Mishap::kNone;
      ++mishaps;
      return static_cast<Mishap>(1 + random() % 4);
    };
    const SchedulerOptions options{.policy = static_cast<SharePolicy>(i % 3),
                                   .min_lease_s = 0,
                                   .first_lease_s = 1e4,
                                   .max_misses = 1000,
                                   .max_attempts = 1000,
                                   .verify_every = i % 5 == 0 ? 3 : 0};
    Scheduler scheduler(devices(world.truth.size(), world.slots), options);
    for (int iteration = 0; iteration < 4; ++iteration) {
      const auto outcome = world.iterate(scheduler, 1 + static_cast<int64_t>(random() % 40));
      for (const auto& by : outcome.counted) EXPECT_EQ(by.size(), 1U) << i;
    }
  }
  EXPECT_GT(mishaps, 5000);
}

TEST(Scheduler, SharesBySpeedAndEndsWithinAShardOfTheBestPartition) {
  const std::vector<Speed> truth = {{0, 1e-4}, {0, 3e-4}, {0, 7e-4}};
  std::vector<DeviceCost> costs;
  costs.reserve(truth.size());
  for (const Speed& speed : truth) costs.push_back({speed.start_s, speed.row_s});
  const double best = partition(60 * 100, costs, 100).seconds;
  for (const SharePolicy policy : {SharePolicy::kAffine, SharePolicy::kStealing}) {
    World world{.truth = truth};
    Scheduler scheduler(devices(3), {.policy = policy});
    world.iterate(scheduler, 60);
    const auto outcome = world.iterate(scheduler, 60);
    EXPECT_LE(outcome.seconds, best * (1 + 1e-9)) << static_cast<int>(policy);
    EXPECT_EQ(sum(outcome.computed), 60);
  }
}

TEST(Scheduler, SharesByTheGivenRatioAndStealsNothing) {
  auto list = devices(2);
  list[0].ratio = 3;
  World world{.truth = {{0, 1e-4}, {0, 1e-4}}};
  Scheduler scheduler(list, {.policy = SharePolicy::kStatic});
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(world.iterate(scheduler, 40).computed, (std::vector<int64_t>{30, 10})) << i;
}

TEST(Scheduler, StealsFromADeviceThatBecomesSlowAndMovesTheBoundary) {
  World world{.truth = {{0, 1e-4}, {0, 1e-4}}};
  Scheduler scheduler(devices(2), {.min_lease_s = 100});
  for (int i = 0; i < 3; ++i) world.iterate(scheduler, 100);
  EXPECT_EQ(scheduler.shares(), (std::vector<int64_t>{50, 50}));
  world.truth[1].row_s = 3e-4;
  const double best = 100 * 100 / (1 / 1e-4 + 1 / 3e-4);
  EXPECT_LE(world.iterate(scheduler, 100).seconds, best + 2 * 100 * 3e-4) << "the very iteration";
  for (int i = 0; i < 2; ++i) world.iterate(scheduler, 100);
  EXPECT_EQ(scheduler.shares(), (std::vector<int64_t>{75, 25}));
}

TEST(Scheduler, LeavesShardsWhereTheyAreWhileMovingThemGainsLittle) {
  World world{.truth = {{0, 1e-4}, {0, 2e-4}}};
  Scheduler scheduler(devices(2), {.policy = SharePolicy::kAffine});
  for (int i = 0; i < 2; ++i) world.iterate(scheduler, 900);
  const auto before = scheduler.shares();
  EXPECT_EQ(before, (std::vector<int64_t>{600, 300}));
  world.truth[1].row_s = 2.03e-4;
  for (int i = 0; i < 20; ++i) world.iterate(scheduler, 900);
  EXPECT_EQ(scheduler.shares(), before) << "3 shards would gain 1 %";
  world.truth[1].row_s = 2.2e-4;
  for (int i = 0; i < 20; ++i) world.iterate(scheduler, 900);
  EXPECT_GT(scheduler.shares()[0], 610);
}

TEST(Scheduler, UsesNoDeviceThatWouldOnlyDelay) {
  for (const SharePolicy policy : {SharePolicy::kAffine, SharePolicy::kStealing}) {
    World world{.truth = {{0, 1e-4}, {5, 1e-4}}};  // 5 s to start; all of it takes the other 0.2 s
    Scheduler scheduler(devices(2), {.policy = policy});
    world.iterate(scheduler, 20);
    const auto outcome = world.iterate(scheduler, 20);
    EXPECT_EQ(outcome.computed, (std::vector<int64_t>{20, 0}));
    EXPECT_NEAR(outcome.seconds, 0.2, 1e-9);
  }
}

TEST(Scheduler, KeepsAStartSmallAndTakesARestAtOnceThatIsNotWorthAnother) {
  auto list = devices(2);
  for (const int64_t rows : {100, 1000, 4000}) {
    list[0].history.add(rows, 0.01 + 1e-4 * static_cast<double>(rows));
    list[1].history.add(rows, 1e-4 * static_cast<double>(rows));
  }
  Scheduler scheduler(list);
  scheduler.begin(std::vector<int64_t>(200, 100), 0);
  const int64_t share = scheduler.shares()[0];
  const auto first = scheduler.next(0, 0, 0);
  EXPECT_EQ(first->count, 50) << "0.01 s are 2 % of 0.5 s";
  EXPECT_EQ(scheduler.next(1, 0, 0)->count, 1) << "no start";
  for (int64_t i = 0; i < first->count; ++i) scheduler.deliver(*first, i, 1, 0.51);
  EXPECT_EQ(scheduler.next(0, 0, 0.51)->count, share - 50);
}

TEST(Scheduler, ProbesEachDeviceThoughThereAreFewerShardsThanSlots) {
  // Fifteen cores and a GPU as fast as all of them. By slots, the GPU would get none of 13 shards.
  for (const int64_t shards : {2, 13}) {
    auto list = devices(2);
    list[0].slots = 15;
    for (const SharePolicy policy : {SharePolicy::kAffine, SharePolicy::kStealing}) {
      World world{.truth = {{0, 15e-4}, {1e-3, 1e-4}}};
      world.slots_of = {15, 1};
      Scheduler scheduler(list, {.policy = policy});
      world.iterate(scheduler, shards, 1024);
      world.iterate(scheduler, shards, 1024);
      EXPECT_GT(scheduler.history(1).size(), 0U);
      EXPECT_GT(world.iterate(scheduler, shards, 1024).computed[1], 0) << shards;
    }
  }
}

TEST(Scheduler, FindsTheSplitInThreeIterations) {
  // Fifteen cores, and GPUs that are 0.2 to 50 times as fast as all of them. A start of a GPU takes
  // 0.2 ms.
  for (const double ratio : {0.2, 1.0, 5.0, 50.0})
    for (const int64_t shards : {80, 800}) {
      const double core_row_s = 15e-8;
      const std::vector<Speed> truth = {{2e-6, core_row_s}, {2e-4, core_row_s / 15 / ratio}};
      World world{.truth = truth};
      world.slots_of = {15, 1};
      auto list = devices(2);
      list[0].slots = 15;
      Scheduler scheduler(list);
      double seconds = 0;
      for (int i = 0; i < 3; ++i) seconds = world.iterate(scheduler, shards, 1024).seconds;
      const std::vector<DeviceCost> costs = {{2e-6, core_row_s / 15, 1 << 30, 0, 15},
                                             {truth[1].start_s, truth[1].row_s}};
      const double best = partition(shards * 1024, costs, 1024).seconds;
      EXPECT_LT(seconds, 1.05 * best) << ratio << ", " << shards;
    }
}

TEST(Scheduler, FindsTheSplitOfARealMachineInThreeIterations) {
  // Seconds of an iteration over 819,200 x 100 rows on 8 cores and on an H100, each alone, by
  // version 0.2 (K = 5, 64 and 1024). A call on the GPU started in 0.2 ms.
  constexpr int64_t kShards = 800, kGrain = 1024;
  for (const auto& [cores_s, gpu_s] :
       {std::pair{9.87e-3, 33.2e-3}, std::pair{28.8e-3, 37.2e-3}, std::pair{0.299, 82.1e-3}}) {
    constexpr double kRows = kShards * kGrain, kStart = 2e-4;
    World world{.truth = {{0, 8 * cores_s / kRows}, {kStart, (gpu_s - kStart) / kRows}}};
    world.slots_of = {8, 1};
    auto list = devices(2);
    list[0].slots = 8;
    Scheduler scheduler(list);
    double seconds = 0;
    for (int i = 0; i < 3; ++i) seconds = world.iterate(scheduler, kShards, kGrain).seconds;
    // The best of all splits.
    double best = std::min(cores_s, gpu_s);
    for (int64_t gpu = 1; gpu < kShards; ++gpu) {
      const double shard_s = world.truth[0].row_s * kGrain;
      const int64_t rounds = (kShards - gpu + 7) / 8;
      best = std::min(best,
                      std::max(static_cast<double>(rounds) * shard_s,
                               kStart + world.truth[1].row_s * kGrain * static_cast<double>(gpu)));
    }
    EXPECT_LT(seconds, 1.05 * best) << cores_s << " s and " << gpu_s << " s";
    EXPECT_LT(best, 0.9 * std::min(cores_s, gpu_s)) << "sharing gains nothing";
  }
}

TEST(Scheduler, MeasuresADeviceWithoutAShareAgain) {
  // A device that other programs kept busy: its start takes too long to help.
  for (const double start_s : {9e-3, 30e-3}) {
    World world{.truth = {{0, 1e-6}, {start_s, 1e-6}}};
    Scheduler scheduler(devices(2));
    for (int i = 0; i < 10; ++i) world.iterate(scheduler, 80, 100);
    EXPECT_EQ(scheduler.shares(), (std::vector<int64_t>{80, 0}));
    const double begin_s = world.now_s;
    for (int i = 0; i < 1000; ++i) world.iterate(scheduler, 80, 100);
    EXPECT_LT(world.now_s - begin_s, 1.025 * 1000 * 80 * 100 * 1e-6);
    world.truth[1] = {0, 1e-6};
    double seconds = 0;
    for (int i = 0; i < 1000; ++i) seconds = world.iterate(scheduler, 80, 100).seconds;
    EXPECT_LT(seconds, 1.1 * 40 * 100 * 1e-6);
  }
}

TEST(Scheduler, StealsNoMoreThanFitsTheMemory) {
  // Device 0 takes a shard that device 1 gave up, and then its own five: more than its memory.
  auto list = devices(2);
  list[0].max_rows = 500;
  for (const int64_t rows : {100, 1000}) {
    list[0].history.add(rows, 1e-4 * static_cast<double>(rows));
    list[1].history.add(rows, 1e-2 * static_cast<double>(rows));
  }
  Scheduler scheduler(list);
  scheduler.begin(std::vector<int64_t>(20, 100), 0);
  const auto slow = scheduler.next(1, 0, 0);
  ASSERT_TRUE(slow && scheduler.fail(*slow, slow->begin, 1, "no"));
  int64_t taken = 0;
  double now_s = 0;
  while (const auto lease = scheduler.next(0, 0, now_s)) {
    now_s += 0.1;
    ASSERT_GE(lease->count, 1);
    taken += lease->count;
    ASSERT_LE(taken, 6);
    scheduler.deliver(*lease, lease->begin, lease->count, now_s);
  }
  EXPECT_GE(taken, 5);
}

TEST(Scheduler, GivesTheShardsOfASilentDeviceToAnotherAndDropsWhatComesLate) {
  for (const SharePolicy policy :
       {SharePolicy::kStatic, SharePolicy::kAffine, SharePolicy::kStealing}) {
    World world{.truth = {{0, 1e-4}, {0, 1e-4}}};
    Scheduler scheduler(devices(2), {.policy = policy, .min_lease_s = 0});
    world.iterate(scheduler, 20);
    bool first = true;
    world.mishap = [&](size_t d) {
      return d == 1 && std::exchange(first, false) ? Mishap::kLate : Mishap::kNone;
    };
    const auto outcome = world.iterate(scheduler, 20);
    for (const auto& by : outcome.counted) EXPECT_EQ(by, std::vector<size_t>{0});
    EXPECT_FALSE(scheduler.left_out(1));
    EXPECT_GT(world.iterate(scheduler, 2000).computed[1], 0) << "it came back";
  }
}

TEST(Scheduler, LeavesOutADeviceThatFailsAgainAndAgainWithItsReason) {
  World world{.truth = {{0, 1e-4}, {0, 1e-4}}};
  world.mishap = [](size_t d) { return d == 1 ? Mishap::kThrow : Mishap::kNone; };
  Scheduler scheduler(devices(2), {.max_misses = 3});
  const auto outcome = world.iterate(scheduler, 20);
  EXPECT_EQ(outcome.computed, (std::vector<int64_t>{20, 0}));
  ASSERT_TRUE(scheduler.left_out(1));
  EXPECT_NE(scheduler.left_out(1)->find("it was told to"), std::string::npos)
      << *scheduler.left_out(1);
  world.iterate(scheduler, 20);
  EXPECT_EQ(scheduler.shares(), (std::vector<int64_t>{20, 0}));
}

TEST(Scheduler, GivesUpAShardThatFailsWhereverItIsTried) {
  Scheduler scheduler(devices(2), {.max_misses = 100, .max_attempts = 3});
  scheduler.begin({10}, 0);
  std::vector<size_t> tried;
  for (bool again = true; again;) {
    auto lease = scheduler.next(0, 0, 0);
    if (!lease) lease = scheduler.next(1, 0, 0);
    tried.push_back(lease->device);
    again = scheduler.fail(*lease, 0, 1, "no");
  }
  EXPECT_EQ(tried.size(), 3U);
  EXPECT_EQ(tried[1], 1U) << "elsewhere";
}

TEST(Scheduler, EndsWhenNobodyIsLeft) {
  World world{.truth = {{0, 1e-4}, {0, 1e-4}}};
  world.mishap = [](size_t) { return Mishap::kSilence; };
  Scheduler scheduler(devices(2), {.first_lease_s = 0.001});
  try {
    world.iterate(scheduler, 20);
    FAIL() << "done";
  } catch (const DevicesLost& error) {
    EXPECT_NE(std::string(error.what()).find("device 1: it has been silent"), std::string::npos)
        << error.what();
  }
}

TEST(Scheduler, FindsTheDeviceWhoseResultsAreWrong) {
  World world{.truth = {{0, 1e-4}, {0, 1e-4}, {0, 1e-4}}};
  world.digest = [](size_t d) { return d == 1 ? 1 : 0; };
  Scheduler scheduler(devices(3), {.verify_every = 4});
  const auto outcome = world.iterate(scheduler, 40);
  ASSERT_TRUE(scheduler.left_out(1));
  EXPECT_NE(scheduler.left_out(1)->find("not the one that two others have"), std::string::npos);
  EXPECT_FALSE(scheduler.left_out(0) || scheduler.left_out(2));
  for (int64_t shard = 0; shard < 40; ++shard) {
    if (!scheduler.is_verified(shard)) continue;
    EXPECT_NE(outcome.counted[static_cast<size_t>(shard)], std::vector<size_t>{1}) << shard;
  }
}

TEST(Scheduler, CannotDecideBetweenTwo) {
  World world{.truth = {{0, 1e-4}, {0, 1e-4}}};
  world.digest = [](size_t d) { return d; };
  Scheduler scheduler(devices(2), {.verify_every = 1});
  EXPECT_THROW(world.iterate(scheduler, 4), DevicesLost);
  EXPECT_THROW(Scheduler(devices(1), {.verify_every = 1}), UserError);
}

TEST(Scheduler, VerifiesOthersInTheNextIteration) {
  Scheduler scheduler(devices(2), {.verify_every = 3});
  World world{.truth = {{0, 1e-4}, {0, 1e-4}}};
  std::vector<int> verified(9, 0);
  for (int i = 0; i < 3; ++i) {
    const auto outcome = world.iterate(scheduler, 9);
    EXPECT_EQ(sum(outcome.computed), 12);
    for (int64_t shard = 0; shard < 9; ++shard)
      verified[static_cast<size_t>(shard)] += scheduler.is_verified(shard);
  }
  EXPECT_EQ(verified, std::vector<int>(9, 1));
}

TEST(Scheduler, RespectsWhatAMemoryHolds) {
  auto list = devices(2);
  list[0].max_rows = 500;
  World world{.truth = {{0, 1e-5}, {0, 1e-3}}};
  Scheduler scheduler(list);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(world.iterate(scheduler, 20).computed, (std::vector<int64_t>{5, 15})) << i;
}

}  // namespace
}  // namespace dovetail::jobs::scheduler_test
