#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/jobs/job.h"
#include "dovetail/jobs/scheduler.h"
#include "dovetail/jobs/workers.h"

namespace dovetail::jobs {

/// A group of processors that computes shards, each of its threads one at a time; or a GPU, to
/// which a thread with a processor of its own brings them.
struct ExecutorSpec {
  c10::Device device = c10::kCPU;
  int64_t threads = 1;
  double ratio = 1;  ///< its share under SharePolicy::kStatic, in proportion to the others'
};
/// "cpu:2,cpu:1,cuda:0": an executor of two threads, one of one, and the first GPU; `ratio` as
/// their threads. UserError for anything else.
std::vector<ExecutorSpec> parse_executors(std::string_view text);

/// What an executor does about a shard, in place of delivering work() once: deliver results of it
/// any number of times, after any time, or throw. With this tests put faults and benchmarks unequal
/// speeds into real executors.
using AroundShard = std::function<std::vector<ShardResult>(
    size_t executor, int64_t shard, const std::function<ShardResult()>& work)>;

struct RuntimeOptions {
  SchedulerOptions scheduling = {};
  /// Threads are bound to processors of their own, one of each core first: there must be as many
  /// (UserError).
  enum class Binding { kProcessors, kNone } binding = Binding::kProcessors;
  /// Of the usable processors, how many are left to other processes of the machine before those of
  /// this one.
  int64_t first_processor = 0;
  /// Where speeds are kept from one process to the next (SpeedStore); empty: nowhere.
  std::filesystem::path speeds = {};
  AroundShard around = {};
};

/// Executors of unequal speed that share every job: the driver, which is whoever calls `run`,
/// publishes the parameters, a Scheduler hands out shards, executors compute them, and partials are
/// added along one tree. The result is the same bits as run_task gives, whichever executors there
/// are and whatever happens to them while one of them is left: a failed, hung or slow one's shards
/// are computed elsewhere (SchedulerOptions says when), and exactly one result of each counts, its
/// rows included.
///
/// Each thread computes alone: inside a task, OpenMP and BLAS have one thread.
///
/// Speeds are learned for each task, sizes of its parameters and of a row, number of rows to a
/// power of two, executor and number of its threads.
class Runtime : public Workers {
 public:
  /// UserError for a GPU that cannot be used.
  explicit Runtime(const std::vector<ExecutorSpec>& executors, RuntimeOptions options = {});
  /// Waits for what executors still compute.
  ~Runtime() override;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The sum of the task's partials over shards of one data that follow one another. One call at a
  /// time.
  ///
  /// Throws what the task threw where it threw max_attempts times on one shard; DevicesLost with
  /// every executor's reason when none is left. The runtime can be used again after the former.
  Partial run(const std::string& task, const Parameters& parameters,
              const std::vector<Shard>& shards) override;
  /// The same over shards that are `place`, place + 1, ... of more: what they add to the sum over
  /// all.
  std::vector<BlockSum> run_blocks(const std::string& task, const Parameters& parameters,
                                   const std::vector<Shard>& shards, int64_t place);
  at::Tensor rows(const ResidentData& data, size_t index) override { return data.tensor(index); }

  struct Report {
    std::string name;  ///< "cpu:2", "cuda:0", or "cpu:2 (1)" where executor 0 has the same
    int64_t rows = 0;  ///< that it computed so far and that counted
    std::optional<std::string> left_out = {};
  };
  std::vector<Report> report() const;

  /// Writes the speeds to the folder of the options.
  void save_speeds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::jobs
