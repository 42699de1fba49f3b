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

/// Group of CPU threads; each thread computes one shard at a time. Or a GPU: a host thread with its
/// own processor brings shards to it.
struct ExecutorSpec {
  c10::Device device = c10::kCPU;
  int64_t threads = 1;
  double ratio = 1;  ///< weight of its share under SharePolicy::kStatic, relative to the others
};
/// Parses a list of executors. Example: "cpu:2,cpu:1,cuda:0" is an executor with two threads, one
/// with one thread, and the first GPU. `ratio` becomes the number of threads. Throws UserError for
/// any other text.
std::vector<ExecutorSpec> parse_executors(std::string_view text);

/// Hook that replaces the computation of a shard by an executor. It may call work() and return its
/// results any number of times, after any delay, or throw. Tests inject faults and benchmarks
/// inject unequal speeds with it.
using AroundShard = std::function<std::vector<ShardResult>(
    size_t executor, int64_t shard, const std::function<ShardResult()>& work)>;

struct RuntimeOptions {
  SchedulerOptions scheduling = {};
  /// Binds each thread to its own processor, one of each core first. Throws UserError if there are
  /// too few processors.
  enum class Binding { kProcessors, kNone } binding = Binding::kProcessors;
  /// Number of usable processors to skip. They are left to other processes on the machine.
  int64_t first_processor = 0;
  /// Folder that keeps measured speeds from one process to the next (SpeedStore). Empty: speeds are
  /// not kept.
  std::filesystem::path speeds = {};
  AroundShard around = {};
};

/// Executors of unequal speed that share every job. The driver is the thread that calls `run`, and
/// it publishes the parameters. A Scheduler hands out shards, executors compute them, and partials
/// are added along one tree. The result has the same bits as the result of run_task. This holds for
/// any executors and any faults, while at least one executor is left. Shards of a failed, hung or
/// slow executor are computed elsewhere; SchedulerOptions holds the limits. Exactly one result of
/// each shard counts, including the rows that it wrote.
///
/// Each thread computes alone: inside a task, OpenMP and BLAS have one thread.
///
/// Speeds are learned per executor, number of threads, task, sizes of its parameters and of a row,
/// and floor(log2(rows)).
class Runtime : public Workers {
 public:
  /// Throws UserError for a GPU that cannot be used.
  explicit Runtime(const std::vector<ExecutorSpec>& executors, RuntimeOptions options = {});
  /// Waits until the executors have finished their current shards.
  ~Runtime() override;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Returns the sum of the task's partials over consecutive shards of one ResidentData. One call
  /// at a time.
  ///
  /// Throws the exception of the task if it threw max_attempts times on one shard. The runtime can
  /// then be used again. Throws DevicesLost with the reason of every executor if no executor is
  /// left.
  Partial run(const std::string& task, const Parameters& parameters,
              const std::vector<Shard>& shards) override;
  /// Computes a part of a larger job, whose shards `place`, place + 1, ... these are. Returns their
  /// contribution to the sum over all shards, as blocks of a TreeSum.
  std::vector<BlockSum> run_blocks(const std::string& task, const Parameters& parameters,
                                   const std::vector<Shard>& shards, int64_t place);
  at::Tensor rows(const ResidentData& data, size_t index) override { return data.tensor(index); }

  struct Report {
    /// "cpu:2", "cuda:0", or "cpu:2 (1)" if an earlier executor is named "cpu:2".
    std::string name;
    int64_t rows = 0;  ///< rows of its results that have counted so far
    std::optional<std::string> left_out = {};
  };
  std::vector<Report> report() const;

  /// Writes the measured speeds to the folder RuntimeOptions::speeds.
  void save_speeds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::jobs
