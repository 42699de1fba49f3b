// Threads return after their job has ended. Their inputs have not changed, and their writes do not
// count.
// ctest-labels: threads
#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "tests/jobs/runtime_testing.h"

namespace dovetail::jobs::testing::runtime_late_test {
namespace {

TEST(Runtime, DropsWhatAHungExecutorDeliversInALaterJob) {
  std::atomic<bool> hung = false, released = false;
  std::atomic<int> job = 0;  // speeds are unknown in the first ones, and leases long
  Runtime runtime(executors({1, 1}),
                  {.scheduling = {.min_lease_s = 0.001},
                   .binding = kUnbound,
                   .around = [&](size_t executor, const Block&, const auto& work) {
                     auto results = once(work);
                     if (executor == 1 && job > 3 && !hung.exchange(true))
                       while (!released) pause(0.001);
                     return results;
                   }});
  Numbers ours(100), theirs(100);
  const auto both = [&](int64_t i) {
    ++job;
    const Partial sum = runtime.run("test.advance", {factor(i)}, ours.shards());
    EXPECT_EQ(sum.tensors[0].item<double>(),
              run_task("test.advance", {factor(i)}, theirs.shards()).tensors[0].item<double>())
        << i;
  };
  std::jthread release([&] {
    while (!hung) pause(0.001);
    pause(0.05);
    released = true;
  });
  int64_t i = 0;
  while (!released) both(i++);
  for (const int64_t end = i + 20; i < end;) both(i++);
  EXPECT_TRUE(at::equal(ours.state(), theirs.state()));
}

Partial read(const Parameters& parameters, const Shards& shard) {
  const auto rows = rows_of(shard);
  return {{rows[1].sum() * parameters[0]}, static_cast<double>(shard.size)};
}
const TaskRegistration kRead("test.read", at::kCPU, read);

TEST(Runtime, LetsALateThreadReadWhatItsJobBeganWith) {
  for (const char* task : {"test.read", "test.advance"}) {
    LateReader late;
    Runtime runtime(executors({1, 1}), late.options());
    Numbers numbers(100);
    const at::Tensor parameter = factor(1);
    for (int i = 0; i < 3; ++i) runtime.run(task, {parameter}, numbers.shards());
    at::Tensor before;
    late.arm();
    for (int i = 0; !late.slept(); ++i) {
      ASSERT_LT(i, 1000);
      before = numbers.state().clone();
      runtime.run(task, {parameter}, numbers.shards());
    }
    parameter.fill_(7);
    for (int i = 0; i < 2; ++i) runtime.run("test.advance", {factor(i)}, numbers.shards());
    ASSERT_FALSE(at::equal(numbers.state(), before));
    const auto [block, result] = late.wake();
    ResidentData old({at::zeros_like(before), before});
    old.put(0, rows_of(numbers.resident.shards(100), 0));
    const auto expected = call_task(find_task(task, at::kCPU), {factor(1)},
                                    old.shards(7).part(block.first, block.count), block.first);
    EXPECT_EQ(result.blocks[0].partial.tensors[0].item<double>(),
              expected[0].partial.tensors[0].item<double>())
        << task;
  }
}

}  // namespace
}  // namespace dovetail::jobs::testing::runtime_late_test
