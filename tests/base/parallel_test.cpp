// ctest-labels: threads
#include "dovetail/base/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::parallel_test {
namespace {

using Pieces = std::multiset<std::pair<int64_t, int64_t>>;

class Parallel : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    before_ = at::get_num_threads();
    at::set_num_threads(GetParam());
  }
  void TearDown() override { at::set_num_threads(before_); }
  int before_ = 1;
};

TEST_P(Parallel, PiecesAreFixedByTheGrain) {
  for (const int64_t size : {0, 1, 7, 64, 1000, 1001}) {
    for (const int64_t grain : {1, 7, 64, 5000}) {
      Pieces expected, seen;
      for (int64_t begin = 0; begin < size; begin += grain)
        expected.emplace(begin, std::min(begin + grain, size));
      std::mutex mutex;
      parallel_pieces(size, grain, [&](int64_t begin, int64_t end) {
        const std::lock_guard lock(mutex);
        seen.emplace(begin, end);
      });
      EXPECT_EQ(seen, expected) << size << " " << grain;
    }
  }
}

TEST_P(Parallel, WorkIsDoneWhenItReturns) {
  std::vector<int64_t> squares(100'000);
  parallel_pieces(std::ssize(squares), 1000, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) squares[static_cast<size_t>(i)] = i * i;
  });
  for (int64_t i = 0; i < std::ssize(squares); ++i)
    ASSERT_EQ(squares[static_cast<size_t>(i)], i * i);
}

TEST_P(Parallel, AnExceptionComesBackAfterAllHaveStopped) {
  std::atomic<int> running{0}, done{0};
  const auto fail_at_ten = [&](int64_t begin, int64_t) {
    ++running;
    if (begin == 10) {
      --running;
      throw std::runtime_error("piece ten");
    }
    ++done;
    --running;
  };
  try {
    parallel_pieces(1'000'000, 1, fail_at_ten);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "piece ten");
  }
  EXPECT_EQ(running, 0);
  // The next call is not disturbed by it.
  done = 0;
  parallel_pieces(100, 1, [&](int64_t, int64_t) { ++done; });
  EXPECT_EQ(done, 100);
}

TEST_P(Parallel, NestedCallsStayOnTheirThread) {
  std::atomic<int64_t> sum{0}, wrong{0};
  parallel_pieces(8, 1, [&](int64_t, int64_t) {
    const auto outer = std::this_thread::get_id();
    const bool shared = GetParam() > 1;
    if (shared && parallel_workers() != 1) ++wrong;
    parallel_pieces(100, 10, [&](int64_t begin, int64_t end) {
      if (shared && std::this_thread::get_id() != outer) ++wrong;
      sum += end - begin;
    });
  });
  EXPECT_EQ(sum, 800);
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, Parallel, ::testing::Values(1, 2, 4));

TEST(ParallelSharing, OthersTakeThePiecesOfASlowThread) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  // The first piece waits for all the others: a fixed partition into two halves would never end.
  std::atomic<int> finished{0};
  bool all_finished = false;
  parallel_pieces(100, 1, [&](int64_t begin, int64_t) {
    if (begin > 0) {
      ++finished;
      return;
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (finished < 99 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    all_finished = finished == 99;
  });
  EXPECT_TRUE(all_finished);
  at::set_num_threads(before);
}

TEST(ParallelSharing, RefusesNonsense) {
  EXPECT_THROW(parallel_pieces(10, 0, [](int64_t, int64_t) {}), InternalError);
  EXPECT_THROW(parallel_pieces(-1, 1, [](int64_t, int64_t) {}), InternalError);
}

TEST(ParallelWorkers, IsWhatATenUses) { EXPECT_EQ(parallel_workers(), at::get_num_threads()); }

}  // namespace
}  // namespace dovetail::parallel_test
