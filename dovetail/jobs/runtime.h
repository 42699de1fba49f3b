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

/// Description of an executor, a part of this machine that computes shards (ranges of rows). It is
/// either a group of CPU threads or one GPU. Each thread of a CPU group computes at most
/// kCallShards shards at a time. A GPU is fed by one host thread, with all shards of a lease at
/// once.
struct ExecutorSpec {
  c10::Device device = c10::kCPU;
  int64_t threads = 1;  ///< number of host threads; 1 for a GPU
  /// SharePolicy::kStatic: weight of the executor's share of the shards, relative to other
  /// executors.
  double ratio = 1;
};
/// Parses a list of executors. Example: "cpu:2,cpu:1,cuda:0" is an executor with two threads, one
/// with one thread, and the first GPU. Each executor's `ratio` is set to its number of threads.
/// Throws UserError for any other text; the error names the option or config key `key`.
std::vector<ExecutorSpec> parse_executors(std::string_view text,
                                          std::string_view key = "executors");
/// Returns a name for each executor, all different. Examples: "cpu:2", "cuda:0", or "cpu:2 (1)" if
/// an earlier executor is named "cpu:2".
std::vector<std::string> executor_names(const std::vector<ExecutorSpec>& executors);

/// Hook called in place of the computation of a block of shards by executor number `executor`.
/// work() computes the block. The hook may call work() any number of times, return its results
/// after any delay, or throw. Tests inject faults and benchmarks inject unequal speeds with it.
using AroundBlock = std::function<std::vector<ShardResult>(
    size_t executor, const Block& shards, const std::function<ShardResult()>& work)>;

struct RuntimeOptions {
  SchedulerOptions scheduling = {};
  /// kProcessors binds each thread to its own logical processor. It uses one logical processor of
  /// every core before the second one of any core. The constructor throws UserError if there are
  /// fewer processors than threads. kNone leaves threads to the operating system.
  enum class Binding { kProcessors, kNone } binding = Binding::kProcessors;
  /// Number of usable processors to skip, so that other processes of the machine can have them.
  int64_t first_processor = 0;
  /// Folder in which save_speeds() stores measured speeds for later processes (SpeedStore). Empty:
  /// speeds are not stored.
  std::filesystem::path speeds = {};
  AroundBlock around = {};  ///< hook for tests and benchmarks; empty: none
};

/// Executors of unequal speed on one machine that compute each job together. A job is one call of
/// `run` or `run_blocks`: a task (jobs/task.h) on a list of shards. A Scheduler assigns shards to
/// executors. The results (partials) are added by a TreeSum.
///
/// On CPU executors, the sum has the same bits as the result of run_task. This holds for any
/// executors and any faults, as long as at least one executor works. On a GPU, it holds for tasks
/// with a BlockTask, such as k-means. Other tasks add the shards of a lease in an order of their
/// own, and leases follow measured times. Shards of a failed, hung or slow
/// executor are computed by other executors; SchedulerOptions holds the limits. Exactly one result
/// of each shard counts, including the rows that the task wrote.
///
/// Inside a task, OpenMP and BLAS use only the calling thread.
///
/// The runtime measures the speed of each executor and uses it to divide later jobs. Jobs have
/// separate speeds if they differ in task, total number of threads or floor(log2(number of rows)).
/// The same holds for different sizes of the parameters or of a row.
class Runtime : public Workers {
 public:
  /// Starts the threads of all executors. Throws UserError for a GPU that cannot be used.
  explicit Runtime(const std::vector<ExecutorSpec>& executors, RuntimeOptions options = {});
  /// Waits until all threads have finished their current shards.
  ~Runtime() override;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Returns the sum of the task's partials over the shards. One call at a time.
  ///
  /// If the task throws SchedulerOptions::max_attempts times on one shard, rethrows its last
  /// exception. The runtime can then be used again. Throws DevicesLost if no executor works any
  /// more. Its message tells for each executor why it failed.
  Partial run(const std::string& task, const Parameters& parameters, const Shards& shards) override;
  /// Like `run`, for a part of a larger job: `place` is the number of the first shard among the
  /// larger job's shards. Returns the sum over `shards`, as blocks of the larger job's TreeSum.
  std::vector<BlockSum> run_blocks(const std::string& task, const Parameters& parameters,
                                   const Shards& shards, int64_t place);
  at::Tensor rows(const ResidentData& data, size_t index) override { return data.tensor(index); }

  /// Work of one executor since the construction of the runtime.
  struct Report {
    std::string name;     ///< as in executor_names
    int64_t threads = 1;  ///< ExecutorSpec::threads
    int64_t rows = 0;     ///< rows of the shards for which this executor's result counted
    /// Seconds summed over the executor's threads. `busy_s`: computing, copies to and from a GPU
    /// included. `copy_s`: the part of busy_s that was spent on these copies. `idle_s`: the rest of
    /// the time in which jobs ran.
    double busy_s = 0, copy_s = 0, idle_s = 0;
    /// Reason why the executor gets no more shards, for example repeated failures; nullopt if it
    /// works.
    std::optional<std::string> left_out = {};
  };
  /// Returns one report per executor, in the order given to the constructor.
  std::vector<Report> report() const;

  /// Course of a job.
  struct LastJob {
    double seconds = 0;
    /// Rows that each executor computed, in the order given to the constructor.
    std::vector<int64_t> rows = {};
    /// Seconds between the last results of the executor that was done first and of the one that was
    /// done last. Executors without rows do not count. 0 if there are fewer than two.
    double apart_s = 0;
  };
  /// Returns the course of the last job that succeeded.
  LastJob last_job() const;

  /// Writes the speeds measured so far to the folder RuntimeOptions::speeds.
  void save_speeds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::jobs
