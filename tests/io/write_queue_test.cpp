// ctest-labels: threads
#include "dovetail/io/write_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <vector>

namespace dovetail::io::write_queue_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

TEST(WriteQueue, RunsTasksInOrderBesideTheCaller) {
  WriteQueue queue(100);
  std::promise<void> gate;
  std::vector<int> done;
  queue.push(60, [&, open = gate.get_future().share()] {
    open.wait();
    done.push_back(1);
  });
  queue.push(40, [&] { done.push_back(2); });  // returns, although the first task waits
  EXPECT_THAT(done, ElementsAre());
  gate.set_value();
  queue.wait();
  EXPECT_THAT(done, ElementsAre(1, 2));
}

TEST(WriteQueue, WaitsForRoomBeyondItsLimit) {
  WriteQueue queue(100);
  std::promise<void> gate;
  queue.push(1000, [open = gate.get_future().share()] { open.wait(); });  // alone, any size fits
  std::future<void> second = std::async(std::launch::async, [&] { queue.push(1, [] {}); });
  EXPECT_EQ(second.wait_for(50ms), std::future_status::timeout);
  gate.set_value();
  second.get();
  queue.wait();
}

TEST(WriteQueue, WithoutMemoryTheCallerRunsTasks) {
  WriteQueue queue(0);
  EXPECT_FALSE(queue.beside());
  bool done = false;
  queue.push(1000, [&] { done = true; });
  EXPECT_TRUE(done);
}

TEST(WriteQueue, DropsTasksThatHaveNotBegun) {
  std::vector<int> done;
  std::promise<void> gate, begun;
  auto queue = std::make_unique<WriteQueue>(100);
  queue->push(1, [&, open = gate.get_future().share()] {
    begun.set_value();
    open.wait();
    done.push_back(1);
  });
  queue->push(1, [&] { done.push_back(2); });
  begun.get_future().wait();
  std::future<void> ends = std::async(std::launch::async, [&] { queue.reset(); });
  EXPECT_EQ(ends.wait_for(50ms), std::future_status::timeout);
  gate.set_value();
  ends.get();
  EXPECT_THAT(done, ElementsAre(1));
}

}  // namespace
}  // namespace dovetail::io::write_queue_test
