// Compares shares of devices of unequal speed with every possible partition and with an integer
// program.
#include "dovetail/jobs/partition.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "tests/base/temporary_folder.h"
#include "tests/folder.h"

namespace dovetail::jobs::partition_test {
namespace {

double end_of(const std::vector<int64_t>& grains, const std::vector<DeviceCost>& devices,
              int64_t grain) {
  double end = 0;
  for (size_t i = 0; i < devices.size(); ++i)
    if (grains[i] > 0) {
      double rounds = 0;
      for (int64_t left = grains[i]; left > 0; left -= devices[i].slots) ++rounds;
      const double round_s = devices[i].row_s * static_cast<double>(devices[i].slots * grain);
      end = std::max(end, devices[i].start_s + rounds * round_s);
    }
  return end;
}

/// The paper's nested search: tries every way to distribute the grains.
double best_of_all(int64_t grains, const std::vector<DeviceCost>& devices, int64_t grain) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int64_t> share(devices.size(), 0);
  const std::function<void(size_t, int64_t)> search = [&](size_t i, int64_t left) {
    const int64_t least = devices[i].min_rows / grain,
                  most = std::min(left, devices[i].max_rows / grain);
    if (i + 1 == devices.size()) {
      if (left < least || left > most) return;
      share[i] = left;
      best = std::min(best, end_of(share, devices, grain));
      return;
    }
    for (share[i] = least; share[i] <= most; ++share[i]) search(i + 1, left - share[i]);
  };
  search(0, grains);
  return best;
}

struct Case {
  std::vector<DeviceCost> devices;
  int64_t grains = 0, grain = 1;
};

/// Returns random cases of devices. Some are slow to start, some slow, some small.
std::vector<Case> random_cases(int count) {
  std::mt19937 random(7);
  const auto between = [&](double low, double high) {
    return std::exp(std::uniform_real_distribution<double>(std::log(low), std::log(high))(random));
  };
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Case c{.grains = static_cast<int64_t>(random() % 14),
           .grain = 1 + static_cast<int64_t>(random() % 3) * 7};
    int64_t room = 0;
    for (size_t d = 0, devices = 1 + random() % 4; d < devices; ++d) {
      c.devices.push_back(
          {.start_s = random() % 3 == 0 ? 0 : between(1e-3, 10), .row_s = between(1e-2, 1)});
      if (random() % 3 == 0) c.devices.back().max_rows = static_cast<int64_t>(random() % 50);
      room += std::min<int64_t>(c.devices.back().max_rows / c.grain, 100);
    }
    if (room >= c.grains) cases.push_back(std::move(c));
  }
  return cases;
}

void expect_the_best(const Case& c) {
  const Partition p = partition(c.grains * c.grain, c.devices, c.grain);
  EXPECT_EQ(std::accumulate(p.rows.begin(), p.rows.end(), int64_t{0}), c.grains * c.grain);
  std::vector<int64_t> grains;
  for (size_t i = 0; i < p.rows.size(); ++i) {
    EXPECT_EQ(p.rows[i] % c.grain, 0);
    EXPECT_LE(p.rows[i], c.devices[i].max_rows);
    EXPECT_GE(p.rows[i], c.devices[i].min_rows);
    grains.push_back(p.rows[i] / c.grain);
  }
  EXPECT_DOUBLE_EQ(p.seconds, end_of(grains, c.devices, c.grain));
  EXPECT_DOUBLE_EQ(p.seconds, seconds_of(grains, c.devices, c.grain));
  EXPECT_DOUBLE_EQ(p.seconds, best_of_all(c.grains, c.devices, c.grain));
}

TEST(Partition, IsTheBestOfAllPartitionsInWholeGrains) {
  const auto cases = random_cases(600);
  ASSERT_GT(cases.size(), 400U);
  for (const Case& c : cases) expect_the_best(c);
}

TEST(Partition, IsTheBestAmongThoseInWhichDevicesHaveTheirLeast) {
  std::mt19937 random(3);
  int bound = 0;  // cases in which this changes the result
  for (Case& c : random_cases(600)) {
    const double free = partition(c.grains * c.grain, c.devices, c.grain).seconds;
    int64_t left = c.grains;
    for (DeviceCost& device : c.devices) {
      const int64_t most = std::min({left, device.max_rows / c.grain, int64_t{4}});
      const int64_t least = static_cast<int64_t>(random()) % (most + 1);
      device.min_rows = least * c.grain;
      left -= least;
    }
    expect_the_best(c);
    bound += partition(c.grains * c.grain, c.devices, c.grain).seconds > free;
  }
  EXPECT_GT(bound, 100);
}

TEST(Partition, FillsTheRoundsOfDevicesThatComputeSeveralGrainsAtATime) {
  std::mt19937 random(4);
  int changed = 0;
  for (Case& c : random_cases(600)) {
    const auto free = partition(c.grains * c.grain, c.devices, c.grain).rows;
    for (DeviceCost& device : c.devices) device.slots = 1 + static_cast<int64_t>(random() % 5);
    for (const int64_t least : {0, 1}) {
      if (least > 0 && c.devices[0].max_rows >= c.grain && c.grains > 0)
        c.devices[0].min_rows = c.grain;
      expect_the_best(c);
    }
    changed += partition(c.grains * c.grain, c.devices, c.grain).rows != free;
  }
  EXPECT_GT(changed, 200);
  // Fifteen cores and a GPU as fast as them: 60 shards are four on each core, 61 are five on one.
  const std::vector<DeviceCost> node = {{.row_s = 1, .slots = 15}, {.row_s = 0.84}};
  EXPECT_EQ(partition(133, node, 1).rows, (std::vector<int64_t>{60, 73}));
}

TEST(Partition, AgreesWithAnIntegerProgramOfHighs) {
  const char* python = std::getenv("DOVETAIL_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "DOVETAIL_PYTHON is not set";
  std::vector<Case> cases = random_cases(25);
  // A job of realistic size: 16 cores and two GPUs.
  Case job{.grains = 500, .grain = 1024};
  for (int i = 0; i < 16; ++i)
    job.devices.push_back({.start_s = 1e-4, .row_s = 5e-6 * (1 + 0.01 * i)});
  for (int i = 0; i < 2; ++i)
    job.devices.push_back({.start_s = 2e-3, .row_s = 4e-7, .max_rows = 100 * 1024});
  cases.push_back(job);
  nlohmann::json programs = nlohmann::json::array();
  for (const Case& c : cases) {
    nlohmann::json devices = nlohmann::json::array();
    for (const DeviceCost& d : c.devices)
      devices.push_back({d.start_s, d.row_s * static_cast<double>(c.grain),
                         std::min(d.max_rows / c.grain, c.grains)});
    programs.push_back({{"grains", c.grains}, {"devices", devices}});
  }
  const test::TemporaryFolder folder;
  const auto in = folder.path() / "programs.json", out = folder.path() / "ends.json";
  std::ofstream(in) << programs;
  const std::string script = (test::tests_folder() / "jobs/partition_oracle.py").string();
  ASSERT_EQ(std::system(
                fmt::format("{} {} '{}' '{}'", python, script, in.string(), out.string()).c_str()),
            0);
  const auto ends = nlohmann::json::parse(read_file(out));
  for (size_t i = 0; i < cases.size(); ++i) {
    const Partition p =
        partition(cases[i].grains * cases[i].grain, cases[i].devices, cases[i].grain);
    EXPECT_NEAR(p.seconds, ends[i].get<double>(), 1e-6 * (1 + p.seconds)) << i;
  }
}

TEST(Partition, EndsTogetherWhereGrainsAreSmall) {
  // T = (N + sum a/b) / sum 1/b.
  const std::vector<DeviceCost> devices = {{.start_s = 1, .row_s = 1e-3},
                                           {.start_s = 3, .row_s = 1e-4}};
  const double end = (1e6 + 1 / 1e-3 + 3 / 1e-4) / (1 / 1e-3 + 1 / 1e-4);
  const Partition p = partition(1000000, devices, 1);
  EXPECT_NEAR(p.seconds, end, 1e-3);
  EXPECT_NEAR(static_cast<double>(p.rows[0]), (end - 1) / 1e-3, 1);
}

TEST(Partition, OfSpeedsAloneIsTheAccelerationRatio) {
  // alpha = t_CPU / t_GPU = 4: shares are one fifth and four fifths.
  EXPECT_EQ(partition(1000, std::vector<DeviceCost>{{.row_s = 4e-3}, {.row_s = 1e-3}}, 1).rows,
            (std::vector<int64_t>{200, 800}));
}

TEST(Partition, LeavesOutADeviceThatWouldBeLast) {
  const std::vector<DeviceCost> devices = {{.row_s = 1e-3}, {.start_s = 5, .row_s = 1e-6}};
  EXPECT_EQ(partition(1000, devices, 10).rows, (std::vector<int64_t>{1000, 0}));
  EXPECT_GT(partition(100000, devices, 10).rows[1], 90000) << "but not of a larger job";
}

TEST(Partition, HandsOutEveryGrainOnceWhateverTheSpeeds) {
  // A device whose measured slope is almost 0: T then has no digits left for the shares of the
  // others.
  const std::vector<DeviceCost> devices = {
      {.start_s = 0.155, .row_s = 0x1p-68}, {.row_s = 1.2e-05}, {.row_s = 1.3e-05}};
  const Partition best = partition(40000, devices, 250);
  EXPECT_EQ(std::accumulate(best.rows.begin(), best.rows.end(), int64_t{0}), 40000);
  EXPECT_NEAR(best.seconds, best_of_all(160, devices, 250), 1e-9);
}

TEST(Partition, GivesTheShortGrainToTheLast) {
  EXPECT_EQ(partition(25, std::vector<DeviceCost>{{.row_s = 1}, {.row_s = 1}}, 10).rows,
            (std::vector<int64_t>{20, 5}));
  EXPECT_EQ(partition(0, std::vector<DeviceCost>{{.row_s = 1}}, 10).rows,
            (std::vector<int64_t>{0}));
}

TEST(Partition, RefusesMoreThanTheMemoriesHold) {
  const std::vector<DeviceCost> devices = {{.row_s = 1, .max_rows = 25},
                                           {.row_s = 1, .max_rows = 19}};
  EXPECT_EQ(partition(30, devices, 10).rows, (std::vector<int64_t>{20, 10}));
  EXPECT_THROW(partition(40, devices, 10), UserError);
  EXPECT_THROW(partition(1, std::vector<DeviceCost>{{.row_s = 0}}, 1), InternalError);
  for (const DeviceCost& device :
       {DeviceCost{.row_s = 1, .min_rows = 5}, DeviceCost{.row_s = 1, .min_rows = 30},
        DeviceCost{.row_s = 1, .max_rows = 9, .min_rows = 10}, DeviceCost{.row_s = 1, .slots = 0}})
    EXPECT_THROW(partition(20, std::vector{device, DeviceCost{.row_s = 1}}, 10), InternalError)
        << device.min_rows;
}

TEST(MoveShares, OnlyForMoreThanTheHysteresis) {
  // The best split of 20 grains is 10 : 10; 11 : 9 ends 10 % later.
  const std::vector<DeviceCost> devices = {{.row_s = 1}, {.row_s = 1}};
  const std::vector<int64_t> before = {11, 9}, best = {10, 10};
  EXPECT_EQ(move_shares(before, 200, devices, 10, 0.11), before);
  EXPECT_EQ(move_shares(before, 200, devices, 10, 0.09), best);
  EXPECT_EQ(move_shares(best, 200, devices, 10, 0), best);
  EXPECT_EQ(move_shares(before, 195, devices, 10, 0.11), before) << "the last grain is short";
  EXPECT_EQ(move_shares(std::vector<int64_t>{0, 0}, 200, devices, 10, 10), best)
      << "of no rows yet";
  // A device's minimum rows count in both shares. Here that device finishes last, whatever the
  // others have.
  const std::vector<DeviceCost> slow = {{.row_s = 1}, {.row_s = 1}, {.row_s = 50, .min_rows = 1}};
  const std::vector<int64_t> kept = {6, 1, 1};
  EXPECT_EQ(move_shares(kept, 8, slow, 1, 0.05), kept);
}

}  // namespace
}  // namespace dovetail::jobs::partition_test
