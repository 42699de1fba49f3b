// ctest-labels: threads
//
// Real executors throw, hang, lose results, are slow or deliver twice. The result is bitwise equal
// to an undisturbed run.
#include "dovetail/jobs/runtime.h"

#include <sched.h>

#include <array>
#include <atomic>
#include <thread>

#include "dovetail/base/affinity.h"
#include "dovetail/base/log.h"
#include "tests/base/temporary_folder.h"
#include "tests/jobs/runtime_testing.h"

namespace dovetail::jobs::testing::runtime_test {
namespace {

TEST(Runtime, HasTheBitsOfRunTask) {
  for (const auto& list : {executors({1}), executors({2}), executors({1, 1}), executors({2, 1, 3})})
    for (const SharePolicy policy :
         {SharePolicy::kStatic, SharePolicy::kAffine, SharePolicy::kStealing}) {
      Runtime runtime(list, {.scheduling = {.policy = policy}, .binding = kUnbound});
      expect_same_as_run_task(runtime, 5, 200);
      int64_t rows = 0;
      for (const Runtime::Report& report : runtime.report()) rows += report.rows;
      EXPECT_EQ(rows, 5 * 200);
    }
}

TEST(Runtime, HasTheSameBitsAfterAThousandFaults) {
  set_log_level(LogLevel::kQuiet);
  Faults faults;
  int injected = 0;
  for (int round = 0; injected < 1000; ++round) {
    ASSERT_LT(round, 100);
    Runtime runtime(executors({1, 2, 1}),
                    {.scheduling = {.policy = static_cast<SharePolicy>(round % 3),
                                    .min_lease_s = 0.002,
                                    .first_lease_s = 5,
                                    .max_misses = 1 << 20,
                                    .max_attempts = 1 << 20,
                                    .verify_every = round % 4 == 0 ? 5 : 0},
                     .binding = kUnbound,
                     .around = std::ref(faults)});
    expect_same_as_run_task(runtime, 10, 100);
    injected = 0;
    for (const auto& [fault, count] : faults.counts())
      injected += fault == Fault::kNone ? 0 : count;
  }
  set_log_level(LogLevel::kInfo);
  for (const auto& [fault, count] : faults.counts())
    EXPECT_GT(count, 150) << "fault " << static_cast<int>(fault);
}

TEST(Runtime, RethrowsWhatFailsEverywhereAndGoesOn) {
  set_log_level(LogLevel::kQuiet);
  std::atomic<bool> bad = true;
  Runtime runtime(
      executors({1, 1}),
      {.binding = kUnbound, .around = [&](size_t, const Block& block, const auto& work) {
         if (bad && block.first <= 3 && 3 < block.first + block.count)
           throw UserError("shard 3 is bad", "mend it");
         return once(work);
       }});
  Numbers numbers(100);
  try {
    runtime.run("test.advance", {factor(0)}, numbers.shards());
    FAIL() << "done";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "shard 3 is bad");
    EXPECT_EQ(error.help(), "mend it");
  }
  EXPECT_TRUE(at::equal(numbers.state(), Numbers(100).state()))
      << "a job that failed left something";
  bad = false;
  expect_same_as_run_task(runtime, 3, 100);
  set_log_level(LogLevel::kInfo);
}

TEST(Runtime, RethrowsWhatFailsOnEveryShardOfManyAndGoesOn) {
  set_log_level(LogLevel::kQuiet);
  for (const auto& list : {executors({1}), executors({1, 1})}) {
    std::atomic<bool> bad = false;
    Runtime runtime(list,
                    {.binding = kUnbound, .around = [&](size_t, const Block&, const auto& work) {
                       if (bad) throw UserError("all shards are bad", "mend them");
                       return once(work);
                     }});
    // Speeds are known, and leases have several shards.
    expect_same_as_run_task(runtime, 3, 4000);
    bad = true;
    Numbers numbers(4000);
    try {
      runtime.run("test.advance", {factor(0)}, numbers.shards());
      ADD_FAILURE() << "done";
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(), "all shards are bad");
    }
    for (const Runtime::Report& report : runtime.report()) EXPECT_FALSE(report.left_out);
    bad = false;
    expect_same_as_run_task(runtime, 3, 4000);
  }
  set_log_level(LogLevel::kInfo);
}

TEST(Runtime, TellsWhatEachExecutorDidAndHowTheLastJobEnded) {
  Runtime runtime(executors({1, 2}), {.binding = kUnbound});
  Numbers numbers(4000);
  for (int i = 0; i < 3; ++i) runtime.run("test.advance", {factor(0)}, numbers.shards());
  const Runtime::LastJob job = runtime.last_job();
  ASSERT_EQ(job.rows.size(), 2U);
  EXPECT_EQ(job.rows[0] + job.rows[1], 4000);
  EXPECT_GT(job.seconds, 0);
  EXPECT_GE(job.apart_s, 0);
  EXPECT_LE(job.apart_s, job.seconds);
  const auto report = runtime.report();
  EXPECT_EQ(report[1].threads, 2);
  EXPECT_EQ(report[0].rows + report[1].rows, 3 * 4000);
  EXPECT_GT(report[0].busy_s + report[1].busy_s, 0);
}

TEST(Runtime, LeavesOutAnExecutorThatFailsAndEndsWithoutAny) {
  set_log_level(LogLevel::kQuiet);
  std::atomic<bool> all = false;
  Runtime runtime(
      executors({1, 1}),
      {.binding = kUnbound, .around = [&](size_t executor, const Block&, const auto& work) {
         if (executor == 1 || all) throw std::runtime_error(executor == 1 ? "no fan" : "no power");
         pause(0.001);
         return once(work);
       }});
  expect_same_as_run_task(runtime, 3, 200);
  const auto report = runtime.report();
  EXPECT_FALSE(report[0].left_out);
  ASSERT_TRUE(report[1].left_out);
  EXPECT_NE(report[1].left_out->find("no fan"), std::string::npos) << *report[1].left_out;
  EXPECT_EQ(report[1].rows, 0);
  all = true;
  Numbers numbers(200);
  EXPECT_THROW(runtime.run("test.advance", {factor(0)}, numbers.shards()), std::runtime_error);
  set_log_level(LogLevel::kInfo);
}

TEST(Runtime, NamesTheExecutorWhoseResultsAreWrong) {
  set_log_level(LogLevel::kQuiet);
  Runtime runtime(executors({1, 1, 1}),
                  {.scheduling = {.verify_every = 1},
                   .binding = kUnbound,
                   .around = [&](size_t executor, const Block&, const auto& work) {
                     auto results = once(work);
                     if (executor == 1) results[0].rows[0][2] += 1e-12;
                     pause(0.0005);
                     return results;
                   }});
  expect_same_as_run_task(runtime, 5, 100);
  const auto report = runtime.report();
  ASSERT_TRUE(report[1].left_out);
  EXPECT_NE(report[1].left_out->find("not the one that two others have"), std::string::npos);
  EXPECT_FALSE(report[0].left_out || report[2].left_out);
  set_log_level(LogLevel::kInfo);
}

std::atomic<int> g_threads_inside, g_processors_inside, g_processor;
Partial look_around(const Parameters&, const Shards& shard) {
  g_threads_inside = std::max(g_threads_inside.load(), at::get_num_threads());
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof(set), &set);
  g_processors_inside = std::max(g_processors_inside.load(), CPU_COUNT(&set));
  g_processor = ::sched_getcpu();
  return {{at::scalar_tensor(1.0)}, static_cast<double>(shard.size)};
}
const TaskRegistration kLook("test.look_around", at::kCPU, look_around);

TEST(Runtime, ComputesEachShardOnOneThreadBoundToOneProcessor) {
  g_threads_inside = g_processors_inside = 0;
  Numbers numbers(70);
  Runtime runtime(executors({1}));
  runtime.run("test.look_around", {}, numbers.shards());
  EXPECT_EQ(g_threads_inside, 1);
  EXPECT_EQ(g_processors_inside, 1);
  const std::vector<int> processors = usable_processors();
  EXPECT_THROW(Runtime(executors({std::ssize(processors), 1})), UserError);
}

TEST(Runtime, LeavesTheFirstProcessorsToOtherProcesses) {
  const std::vector<int> processors = usable_processors();
  Numbers numbers(70);
  for (int64_t first = 0; first < std::ssize(processors); ++first) {
    Runtime runtime(executors({1}), {.first_processor = first});
    runtime.run("test.look_around", {}, numbers.shards());
    EXPECT_EQ(g_processor, processors[static_cast<size_t>(first)]);
  }
  EXPECT_THROW(Runtime(executors({1}), {.first_processor = std::ssize(processors)}), UserError);
}

TEST(Runtime, KeepsSpeedsFromOneProcessToTheNext) {
  const test::TemporaryFolder folder;
  const auto options = [&] {
    return RuntimeOptions{.scheduling = {.policy = SharePolicy::kAffine},
                          .binding = kUnbound,
                          .speeds = folder.path(),
                          .around = [](size_t executor, const Block&, const auto& work) {
                            pause(executor == 1 ? 0.008 : 0.002);
                            return once(work);
                          }};
  };
  Numbers numbers(700);
  {
    Runtime runtime(executors({1, 1}), options());
    for (int i = 0; i < 3; ++i) runtime.run("test.advance", {factor(0)}, numbers.shards());
    runtime.save_speeds();
  }
  {
    Runtime runtime(executors({1, 1}), options());
    runtime.run("test.advance", {factor(0)}, numbers.shards());
    const int64_t rows = runtime.report()[1].rows;
    EXPECT_GT(rows, 0);
    EXPECT_LT(rows, 700 / 3)
        << "about a fifth, in the first job: of unknown speeds shares are equal";
  }
}

TEST(Runtime, TellsItsExecutorsFromText) {
  const auto list = parse_executors("cpu:2,cpu:16,cuda:3");
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0].threads, 2);
  EXPECT_EQ(list[1].threads, 16);
  EXPECT_EQ(list[1].ratio, 16);
  EXPECT_EQ(list[2].device, c10::Device(c10::kCUDA, 3));
  EXPECT_EQ(list[2].threads, 1);
  for (const char* text : {"", "cpu", "cpu:", "cpu:0", "cpu:1,", ",cpu:1", "cpu:1x", "gpu:1",
                           "cpu:-1", "2", "cuda", "cuda:", "cuda:-1", "cuda:1000"})
    EXPECT_THROW(parse_executors(text), UserError) << text;
}

TEST(Runtime, RefusesToVerifyAGpuByACpuAndAGpuThatIsNotThere) {
  const auto mixed = parse_executors("cpu:1,cuda:0"), far = parse_executors("cuda:126");
  try {
    const Runtime runtime(mixed, {.scheduling = {.verify_every = 5}});
    ADD_FAILURE() << "verifies";
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "hybrid: results of CPUs and GPUs differ by rounding, so they cannot verify each other");
  }
  EXPECT_THROW(Runtime(far, {}), UserError);
}

}  // namespace
}  // namespace dovetail::jobs::testing::runtime_test
