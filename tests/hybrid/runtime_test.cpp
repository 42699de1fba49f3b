// Real executors that throw, hang, lose results, are slow or deliver twice: the result has the bits of the undisturbed
// run.
// ctest-labels: threads
#include "dovetail/hybrid/runtime.h"

#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "dovetail/base/affinity.h"
#include "dovetail/base/log.h"
#include "tests/base/temporary_folder.h"
#include "tests/hybrid/testing.h"

namespace dovetail::hybrid::testing {
namespace {

constexpr auto kUnbound = RuntimeOptions::Binding::kNone;

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// Data x (N), state (N). The state becomes state * 3 + x times the parameter, modulo 1; the partial is a sum whose
/// bits depend on the order, of the state before: a shard that runs twice on rows that it wrote gives another one.
Partial advance(const Parameters& parameters, const Shard& shard) {
  const auto rows = rows_of(shard);
  const auto* x = rows[0].const_data_ptr<double>();
  auto* state = rows[1].mutable_data_ptr<double>();
  const double factor = parameters[0].item<double>();
  double sum = 0;
  for (int64_t i = 0; i < shard.size; ++i) {
    sum += state[i] * std::pow(-10.0, static_cast<double>((shard.begin + i) % 13)) + x[i];
    state[i] = std::fmod(state[i] * 3 + factor * x[i], 1);
  }
  return {{at::scalar_tensor(sum, at::kDouble)}, static_cast<double>(shard.size)};
}
const TaskRegistration kAdvance("test.advance", at::kCPU, advance, {1});

struct Numbers {
  explicit Numbers(int64_t rows, uint64_t seed = 1)
      : resident({normal({rows}, seed, at::kDouble), normal({rows}, seed + 1, at::kDouble)}) {}
  std::vector<Shard> shards() const { return resident.shards(7); }
  at::Tensor state() const { return resident.tensor(1); }

  ResidentData resident;
};

at::Tensor factor(int64_t i) { return at::scalar_tensor(0.1 + static_cast<double>(i), at::kDouble); }

std::vector<ExecutorSpec> executors(std::initializer_list<int64_t> threads) {
  std::vector<ExecutorSpec> list;
  for (const int64_t count : threads) list.push_back({.threads = count});
  return list;
}

std::vector<ShardResult> once(const std::function<ShardResult()>& work) {
  std::vector<ShardResult> results;
  results.push_back(work());
  return results;
}

/// Jobs one after another on the same numbers give the bits of run_task: sums and states.
void expect_same_as_run_task(Runtime& runtime, int64_t jobs, int64_t rows) {
  Numbers ours(rows), theirs(rows);
  for (int64_t i = 0; i < jobs; ++i) {
    const Partial sum = runtime.run("test.advance", {factor(i)}, ours.shards());
    const Partial expected = run_task("test.advance", {factor(i)}, theirs.shards());
    ASSERT_EQ(sum.tensors[0].item<double>(), expected.tensors[0].item<double>()) << "job " << i;
    ASSERT_EQ(sum.weight, expected.weight);
  }
  EXPECT_TRUE(at::equal(ours.state(), theirs.state()));
}

TEST(Runtime, HasTheBitsOfRunTask) {
  for (const auto& list : {executors({1}), executors({2}), executors({1, 1}), executors({2, 1, 3})})
    for (const SharePolicy policy : {SharePolicy::kStatic, SharePolicy::kAffine, SharePolicy::kStealing}) {
      Runtime runtime(list, {.scheduling = {.policy = policy}, .binding = kUnbound});
      expect_same_as_run_task(runtime, 5, 200);
      int64_t rows = 0;
      for (const Runtime::Report& report : runtime.report()) rows += report.rows;
      EXPECT_EQ(rows, 5 * 200);
    }
}

enum class Fault { kNone, kException, kHang, kKill, kSlow, kTwice };

/// Injects a fault into every third shard, of each kind as many.
class Faults {
 public:
  std::vector<ShardResult> operator()(size_t, int64_t, const std::function<ShardResult()>& work) {
    const Fault fault = draw();
    std::vector<ShardResult> results;
    switch (fault) {
      case Fault::kException:
        throw std::runtime_error("injected");
      case Fault::kKill:
        return results;
      case Fault::kHang:
        results = once(work);
        pause(0.006);
        return results;
      case Fault::kSlow:
        pause(0.0005);
        return once(work);
      case Fault::kTwice:
        results = once(work);
        results.push_back(work());
        return results;
      case Fault::kNone:
        break;
    }
    return once(work);
  }
  std::map<Fault, int> counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  Fault draw() {
    const std::lock_guard lock(mutex_);
    const Fault fault = random_() % 3 == 0 ? static_cast<Fault>(1 + random_() % 5) : Fault::kNone;
    ++counts_[fault];
    return fault;
  }

  std::mutex mutex_;
  std::mt19937 random_{11};
  std::map<Fault, int> counts_;
};

TEST(Runtime, HasTheSameBitsAfterAThousandFaults) {
  set_log_level(LogLevel::kQuiet);
  Faults faults;
  int injected = 0;
  for (int round = 0; injected < 1000; ++round) {
    ASSERT_LT(round, 100);
    Runtime runtime(executors({1, 2, 1}), {.scheduling = {.policy = static_cast<SharePolicy>(round % 3),
                                                          .min_lease_s = 0.002,
                                                          .first_lease_s = 5,
                                                          .max_misses = 1 << 20,
                                                          .max_attempts = 1 << 20,
                                                          .verify_every = round % 4 == 0 ? 5 : 0},
                                           .binding = kUnbound,
                                           .around = std::ref(faults)});
    expect_same_as_run_task(runtime, 10, 100);
    injected = 0;
    for (const auto& [fault, count] : faults.counts()) injected += fault == Fault::kNone ? 0 : count;
  }
  set_log_level(LogLevel::kInfo);
  for (const auto& [fault, count] : faults.counts()) EXPECT_GT(count, 150) << "fault " << static_cast<int>(fault);
}

TEST(Runtime, DropsWhatAHungExecutorDeliversInALaterJob) {
  std::atomic<bool> hung = false, released = false;
  std::atomic<int> job = 0;  // speeds are unknown in the first ones, and leases long
  Runtime runtime(executors({1, 1}), {.scheduling = {.min_lease_s = 0.001},
                                      .binding = kUnbound,
                                      .around = [&](size_t executor, int64_t, const auto& work) {
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

/// Executor 1 sleeps before a shard of the job that is begun after `arm`, until `wake`; what it computes then is kept.
class LateReader {
 public:
  RuntimeOptions options() {
    return {.scheduling = {.min_lease_s = 0.001, .first_lease_s = 0.3},
            .binding = kUnbound,
            .around = [this](size_t executor, int64_t shard, const std::function<ShardResult()>& work) {
              const bool late = executor == 1 && armed_.exchange(false);
              while (late && !awake_) pause(0.001);
              auto results = once(work);
              if (late) came_.set_value({shard, results[0]});
              return results;
            }};
  }
  void arm() { armed_ = true; }
  bool slept() const { return !armed_; }
  std::pair<int64_t, ShardResult> wake() {
    awake_ = true;
    return came_.get_future().get();
  }

 private:
  std::atomic<bool> armed_ = false, awake_ = false;
  std::promise<std::pair<int64_t, ShardResult>> came_;
};

Partial read(const Parameters& parameters, const Shard& shard) {
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
    const auto [shard, result] = late.wake();
    ResidentData old({at::zeros_like(before), before});
    old.put(0, rows_of(numbers.resident.shards(100)[0], 0));
    const Partial expected = find_task(task, at::kCPU).run({factor(1)}, old.shards(7)[static_cast<size_t>(shard)]);
    EXPECT_EQ(result.partial.tensors[0].item<double>(), expected.tensors[0].item<double>()) << task;
  }
}

TEST(KMeans, LetsALateThreadReadTheLabelsOfItsJob) {
  const at::Tensor x = raw_features(4 * kKMeansGrain, 3, 8, 1), centres = some_rows(x, 8);
  LateReader late;
  KMeansData data(x, std::make_shared<Runtime>(executors({1, 1}), late.options()));
  data.assign(centres);
  for (int i = 0; i < 3; ++i) data.distances(centres);
  const at::Tensor squares = data.distances(centres).squares.clone();
  late.arm();
  for (int i = 0; !late.slept(); ++i) {
    ASSERT_LT(i, 1000);
    data.distances(centres);
  }
  data.assign(centres.flip(0) + 1);
  data.forget_closest();
  const auto [shard, result] = late.wake();
  EXPECT_TRUE(at::equal(result.rows[0], squares.narrow(0, shard * kKMeansGrain, kKMeansGrain)));
}

TEST(Runtime, RethrowsWhatFailsEverywhereAndGoesOn) {
  set_log_level(LogLevel::kQuiet);
  std::atomic<bool> bad = true;
  Runtime runtime(executors({1, 1}), {.binding = kUnbound, .around = [&](size_t, int64_t shard, const auto& work) {
                                        if (bad && shard == 3) throw UserError("shard 3 is bad", "mend it");
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
  EXPECT_TRUE(at::equal(numbers.state(), Numbers(100).state())) << "a job that failed left something";
  bad = false;
  expect_same_as_run_task(runtime, 3, 100);
  set_log_level(LogLevel::kInfo);
}

TEST(Runtime, LeavesOutAnExecutorThatFailsAndEndsWithoutAny) {
  set_log_level(LogLevel::kQuiet);
  std::atomic<bool> all = false;
  Runtime runtime(executors({1, 1}), {.binding = kUnbound, .around = [&](size_t executor, int64_t, const auto& work) {
                                        if (executor == 1 || all)
                                          throw std::runtime_error(executor == 1 ? "no fan" : "no power");
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
  Runtime runtime(executors({1, 1, 1}), {.scheduling = {.verify_every = 1},
                                         .binding = kUnbound,
                                         .around = [&](size_t executor, int64_t, const auto& work) {
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

std::atomic<int> g_threads_inside, g_processors_inside;
Partial look_around(const Parameters&, const Shard& shard) {
  g_threads_inside = std::max(g_threads_inside.load(), at::get_num_threads());
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof(set), &set);
  g_processors_inside = std::max(g_processors_inside.load(), CPU_COUNT(&set));
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
  const auto processors = static_cast<int64_t>(usable_processors().size());
  EXPECT_THROW(Runtime(executors({processors, 1})), UserError);
}

TEST(Runtime, KeepsSpeedsFromOneProcessToTheNext) {
  const test::TemporaryFolder folder;
  const auto options = [&] {
    return RuntimeOptions{.scheduling = {.policy = SharePolicy::kAffine},
                          .binding = kUnbound,
                          .speeds = folder.path(),
                          .around = [](size_t executor, int64_t, const auto& work) {
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
    EXPECT_LT(rows, 700 / 3) << "about a fifth, in the first job: of unknown speeds shares are equal";
  }
}

TEST(Runtime, TellsItsExecutorsFromText) {
  const auto list = parse_executors("cpu:2,cpu:16");
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].threads, 2);
  EXPECT_EQ(list[1].threads, 16);
  EXPECT_EQ(list[1].ratio, 16);
  for (const char* text : {"", "cpu", "cpu:", "cpu:0", "cpu:1,", ",cpu:1", "cpu:1x", "gpu:1", "cpu:-1", "2"})
    EXPECT_THROW(parse_executors(text), UserError) << text;
}

TEST(KMeans, HasTheSameBitsOnExecutorsThatFail) {
  set_log_level(LogLevel::kQuiet);
  const at::Tensor x = raw_features(5 * kKMeansGrain / 2, 5, 8, 1);
  const at::Tensor centres = some_rows(x, 8);
  KMeansData alone(x);
  std::vector<int64_t> changed, expected_changed;
  const KMeansResult expected = lloyd(alone, centres, {.iterations = 6}, [&](const LloydIteration& line) {
    expected_changed.push_back(line.changed.value());
  });
  Faults faults;
  KMeansData shared(
      x, std::make_shared<Runtime>(
             executors({1, 1, 1}),
             RuntimeOptions{.scheduling = {.min_lease_s = 0.003, .max_misses = 1 << 20, .max_attempts = 1 << 20},
                            .binding = kUnbound,
                            .around = std::ref(faults)}));
  const KMeansResult result = lloyd(shared, centres, {.iterations = 6},
                                    [&](const LloydIteration& line) { changed.push_back(line.changed.value()); });
  EXPECT_EQ(changed, expected_changed);
  EXPECT_TRUE(at::equal(result.centres, expected.centres));
  EXPECT_TRUE(at::equal(result.labels, expected.labels));
  EXPECT_EQ(result.inertia, expected.inertia);
  EXPECT_EQ(result.iterations, expected.iterations);
  set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace dovetail::hybrid::testing
