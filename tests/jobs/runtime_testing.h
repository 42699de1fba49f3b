#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "dovetail/jobs/runtime.h"
#include "tests/ops/testing.h"

/// Common code of the runtime's tests: a task whose result shows if a shard runs twice.
namespace dovetail::jobs::testing {

using namespace dovetail::testing;

inline constexpr auto kUnbound = RuntimeOptions::Binding::kNone;

inline void pause(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Task on data x (N) and state (N). The new state is (state * 3 + x * parameter) modulo 1. The
/// partial is a sum of the previous state whose bits depend on the order. A shard that runs twice
/// on rows that it wrote gives a different partial.
inline Partial advance(const Parameters& parameters, const Shards& shard) {
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
inline const TaskRegistration kAdvance("test.advance", at::kCPU, advance, {1});

struct Numbers {
  explicit Numbers(int64_t rows, uint64_t seed = 1)
      : resident({normal({rows}, seed, at::kDouble), normal({rows}, seed + 1, at::kDouble)}) {}
  Shards shards() const { return resident.shards(7); }
  at::Tensor state() const { return resident.tensor(1); }

  ResidentData resident;
};

inline at::Tensor factor(int64_t i) {
  return at::scalar_tensor(0.1 + static_cast<double>(i), at::kDouble);
}

inline std::vector<ExecutorSpec> executors(std::initializer_list<int64_t> threads) {
  std::vector<ExecutorSpec> list;
  for (const int64_t count : threads) list.push_back({.threads = count});
  return list;
}

inline std::vector<ShardResult> once(const std::function<ShardResult()>& work) {
  std::vector<ShardResult> results;
  results.push_back(work());
  return results;
}

/// Runs several jobs on the same numbers and expects sums and states bitwise equal to those from
/// run_task.
inline void expect_same_as_run_task(Runtime& runtime, int64_t jobs, int64_t rows) {
  Numbers ours(rows), theirs(rows);
  for (int64_t i = 0; i < jobs; ++i) {
    const Partial sum = runtime.run("test.advance", {factor(i)}, ours.shards());
    const Partial expected = run_task("test.advance", {factor(i)}, theirs.shards());
    ASSERT_EQ(sum.tensors[0].item<double>(), expected.tensors[0].item<double>()) << "job " << i;
    ASSERT_EQ(sum.weight, expected.weight);
  }
  EXPECT_TRUE(at::equal(ours.state(), theirs.state()));
}

/// A runtime of one thread that pauses so long before each call of a task.
inline std::shared_ptr<Runtime> pausing(double seconds) {
  return std::make_shared<Runtime>(
      executors({1}),
      RuntimeOptions{.binding = kUnbound, .around = [seconds](size_t, const Block&, auto& work) {
                       pause(seconds);
                       return once(work);
                     }});
}

enum class Fault { kNone, kException, kHang, kKill, kSlow, kTwice };

/// Injects a fault into every third call, equally many of each kind.
class Faults {
 public:
  std::vector<ShardResult> operator()(size_t, const Block&,
                                      const std::function<ShardResult()>& work) {
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

/// Executor 1 sleeps before a block of shards of the first job after `arm`, until `wake`. Its late
/// results are recorded.
class LateReader {
 public:
  RuntimeOptions options() {
    return {.scheduling = {.min_lease_s = 0.001, .first_lease_s = 0.3},
            .binding = kUnbound,
            .around = [this](size_t executor, const Block& block,
                             const std::function<ShardResult()>& work) {
              const bool late = executor == 1 && armed_.exchange(false);
              while (late && !awake_) pause(0.001);
              pause(0.0002);  // both executors get shards
              auto results = once(work);
              if (late) came_.set_value({block, results[0]});
              return results;
            }};
  }
  void arm() { armed_ = true; }
  bool slept() const { return !armed_; }
  std::pair<Block, ShardResult> wake() {
    awake_ = true;
    return came_.get_future().get();
  }

 private:
  std::atomic<bool> armed_ = false, awake_ = false;
  std::promise<std::pair<Block, ShardResult>> came_;
};

}  // namespace dovetail::jobs::testing
