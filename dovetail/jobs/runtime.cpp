#include "dovetail/jobs/runtime.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "dovetail/base/affinity.h"
#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/log.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/jobs/speed_store.h"

namespace dovetail::jobs {
namespace {

[[noreturn]] void refuse_executors(std::string_view text, std::string_view key) {
  throw UserError(
      fmt::format("{}: \"{}\" is no list of executors", key, text),
      "name each with its number of threads, GPUs with their own, for example: cpu:2,cpu:1,cuda:0");
}

void check_gpus(const std::vector<ExecutorSpec>& executors) {
  for (const ExecutorSpec& executor : executors) {
    if (!executor.device.is_cuda()) continue;
    const std::string reason = load_gpu();
    user_check(reason.empty(), "executors: {}: {}", executor.device.str(), reason);
    user_check(executor.device.index() < at::accelerator::deviceCount(),
               "executors: there is no {}", executor.device.str());
  }
}

}  // namespace

std::vector<ExecutorSpec> parse_executors(std::string_view text, std::string_view key) {
  std::vector<ExecutorSpec> executors;
  for (std::string_view rest = text; !rest.empty() || executors.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    const bool last = one.size() == rest.size();
    rest.remove_prefix(last ? one.size() : one.size() + 1);
    if (!last && rest.empty()) refuse_executors(text, key);
    const std::string_view kind = one.substr(0, std::min(one.size(), one.find(':') + 1));
    const std::string_view digits = one.substr(kind.size());
    int64_t number = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    const bool whole = error == std::errc() && end == digits.data() + digits.size();
    ExecutorSpec executor;
    if (whole && kind == "cpu:" && number >= 1) {
      executor.threads = number;
    } else if (whole && kind == "cuda:" && number >= 0 &&
               number < std::numeric_limits<c10::DeviceIndex>::max()) {
      executor.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(number));
    } else {
      refuse_executors(text, key);
    }
    executor.ratio = static_cast<double>(executor.threads);
    executors.push_back(executor);
  }
  return executors;
}

std::vector<std::string> executor_names(const std::vector<ExecutorSpec>& executors) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const ExecutorSpec& executor : executors) {
    const std::string name =
        executor.device.is_cpu() ? fmt::format("cpu:{}", executor.threads) : executor.device.str();
    const int before = seen[name]++;
    names.push_back(before == 0 ? name : fmt::format("{} ({})", name, before));
  }
  return names;
}

struct Runtime::State {
  ~State();
  void work(size_t executor, int64_t slot, std::optional<int> processor);
  void work_on(const std::shared_ptr<Job>& job, const Lease& lease);
  std::vector<Block> calls_of(const Job& job, const Lease& lease) const;
  bool compute(const std::shared_ptr<Job>& job, const Lease& lease, const Block& block);
  std::vector<ShardResult> results_of(const Job& job, const Lease& lease, const Block& block);
  void deliver(const std::shared_ptr<Job>& job, const Lease& lease, const Block& block,
               std::vector<ShardResult> results);
  std::vector<std::pair<Block, ShardResult>> take_counted();
  bool accept(std::unique_lock<std::mutex>& lock);
  bool is_over() const { return accepting == 0 && (error || accepted == std::ssize(shard_rows)); }
  void end_with(std::exception_ptr what);
  std::optional<Lease> ask(size_t executor, int64_t slot);
  Scheduler& scheduler_for(const std::string& key);
  void drive(std::unique_lock<std::mutex>& lock);
  void finish_job(double begin_s);
  std::string speed_key(const std::string& key, size_t executor) const;

  std::vector<ExecutorSpec> executors;
  std::deque<DeviceCopies> copies;  ///< copies of the data, by executor
  std::vector<Report> reports;
  LastJob last_job;
  RuntimeOptions options;
  std::optional<SpeedStore> store;

  std::mutex mutex;  ///< protects all members below
  std::condition_variable changed, finished;
  std::map<std::string, Scheduler> schedulers;  ///< by job_key
  std::shared_ptr<Job> job;                     ///< current job; null between jobs
  Scheduler* scheduler = nullptr;               ///< scheduler of the current job
  /// Results by first shard and executor, while no result of the shards counts yet.
  std::map<std::pair<int64_t, size_t>, ShardResult> delivered;
  std::vector<int64_t> rows_before;  ///< Report::rows of each executor before the current job
  std::vector<double> done_s;        ///< time of each executor's last result in the current job
  std::vector<int64_t> shard_rows;
  /// Number of accepted shards, and of threads in `accept`, for which the driver waits.
  int64_t accepted = 0, accepting = 0;
  std::exception_ptr error;
  double job_s = 0;   ///< seconds of all jobs that succeeded
  double wake_s = 0;  ///< time at which the driver wakes by itself
  bool stopping = false;

  std::vector<std::jthread> threads;
};

Runtime::Runtime(const std::vector<ExecutorSpec>& executors, RuntimeOptions options)
    : state_(std::make_unique<State>()) {
  user_check(!executors.empty(), "hybrid: no executors");
  const bool one_kind = std::ranges::all_of(executors, [&](const ExecutorSpec& executor) {
    return executor.device.type() == executors[0].device.type();
  });
  if (!one_kind && options.scheduling.verify_every > 0)
    throw UserError(
        "hybrid: results of CPUs and GPUs differ by rounding, so they cannot verify each other",
        "use executors of one kind, or no verification");
  check_gpus(executors);
  state_->executors = executors;
  for (std::string& name : executor_names(executors))
    state_->reports.push_back(
        {.name = std::move(name), .threads = executors[state_->reports.size()].threads});
  for (const ExecutorSpec& executor : executors) state_->copies.emplace_back(executor.device);
  state_->options = std::move(options);
  state_->store.emplace(state_->options.speeds);
  const bool bound = state_->options.binding == RuntimeOptions::Binding::kProcessors;
  const std::vector<int> processors = bound ? usable_processors() : std::vector<int>();
  const auto first = static_cast<size_t>(state_->options.first_processor);
  size_t count = 0;
  for (const ExecutorSpec& executor : executors) count += static_cast<size_t>(executor.threads);
  if (bound && first + count > processors.size())
    throw UserError(
        fmt::format("hybrid: executors of {} threads, but this process may use {} of {} processors",
                    count, processors.size() - std::min(first, processors.size()),
                    processors.size()),
        "use fewer threads");
  size_t next = first;
  for (size_t i = 0; i < executors.size(); ++i)
    for (int64_t slot = 0; slot < executors[i].threads; ++slot, ++next)
      state_->threads.emplace_back(
          [state = state_.get(), i, slot,
           processor = bound ? std::optional(processors[next]) : std::nullopt] {
            state->work(i, slot, processor);
          });
}

Runtime::~Runtime() = default;

Runtime::State::~State() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  changed.notify_all();
  threads.clear();
}

void Runtime::State::work(size_t executor, int64_t slot, std::optional<int> processor) {
  if (processor) bind_thread(*processor);
  compute_alone();
  // The name of the thread's lane in a trace; the system keeps 15 characters.
  ::pthread_setname_np(::pthread_self(),
                       fmt::format("{} .{}", reports[executor].name, slot).substr(0, 15).c_str());
  std::unique_lock lock(mutex);
  while (!stopping) {
    const auto lease = ask(executor, slot);
    if (!lease) {
      changed.wait(lock);
      continue;
    }
    const std::shared_ptr<Job> current = job;
    const double begin = now_seconds();
    lock.unlock();
    work_on(current, *lease);
    lock.lock();
    reports[executor].busy_s += now_seconds() - begin;
  }
}

/// Must hold the lock.
std::optional<Lease> Runtime::State::ask(size_t executor, int64_t slot) {
  if (!job || error) return std::nullopt;
  try {
    const auto lease = scheduler->next(executor, slot, now_seconds());
    if (lease && lease->deadline_s < wake_s) finished.notify_one();  // the driver must wake earlier
    return lease;
  } catch (...) {
    end_with(std::current_exception());
    return std::nullopt;
  }
}

/// Ends the job with the first error. Must hold the lock.
void Runtime::State::end_with(std::exception_ptr what) {
  if (!error) error = std::move(what);
  finished.notify_one();
}

void Runtime::State::work_on(const std::shared_ptr<Job>& current, const Lease& lease) {
  for (const Block& block : calls_of(*current, lease))
    if (!compute(current, lease, block)) return;
}

/// Returns the pieces of a lease that are computed in one call each. Verified shards are compared
/// one by one.
std::vector<Block> Runtime::State::calls_of(const Job& current, const Lease& lease) const {
  const int64_t most = options.scheduling.verify_every > 0 ? 1 : kCallShards;
  if (most > 1 && !executors[lease.device].device.is_cpu()) return {{lease.begin, lease.count}};
  std::vector<Block> calls = blocks_of(current.place() + lease.begin, lease.count, most);
  for (Block& call : calls) call.first -= current.place();
  return calls;
}

std::vector<ShardResult> Runtime::State::results_of(const Job& current, const Lease& lease,
                                                    const Block& block) {
  const auto compute = [&] {
    return current.compute(block.first, block.count, copies[lease.device]);
  };
  if (options.around) return options.around(lease.device, block, compute);
  std::vector<ShardResult> results;
  results.push_back(compute());
  return results;
}

/// Returns false if the rest of the lease is no longer needed.
bool Runtime::State::compute(const std::shared_ptr<Job>& current, const Lease& lease,
                             const Block& block) {
  std::exception_ptr thrown;
  std::string reason;
  try {
    deliver(current, lease, block, results_of(*current, lease, block));
  } catch (const std::exception& exception) {
    thrown = std::current_exception();
    reason = exception.what();
  }
  const std::lock_guard lock(mutex);
  if (current != job || error) return false;
  if (!thrown) return true;
  log_info("hybrid: {} failed: {}", reports[lease.device].name, reason);
  try {
    if (!scheduler->fail(lease, block.first, block.count, reason)) end_with(thrown);
  } catch (const DevicesLost&) {
    // The task is at fault if it threw on all devices.
    end_with(scheduler->take_back() ? thrown : std::current_exception());
  } catch (...) {
    end_with(std::current_exception());
  }
  changed.notify_all();
  return false;
}

void Runtime::State::deliver(const std::shared_ptr<Job>& current, const Lease& lease,
                             const Block& block, std::vector<ShardResult> results) {
  std::vector<uint64_t> digests;
  if (options.scheduling.verify_every > 0)
    for (const ShardResult& result : results) digests.push_back(Job::digest(result));
  digests.resize(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    std::unique_lock lock(mutex);
    reports[lease.device].copy_s += results[i].copy_s;
    if (current != job) return;
    try {
      const double now_s = now_seconds();
      if (scheduler->deliver(lease, block.first, block.count, now_s, digests[i])) {
        delivered.emplace(std::pair(block.first, lease.device), std::move(results[i]));
        done_s[lease.device] = now_s;
      }
      accept(lock);
    } catch (...) {
      end_with(std::current_exception());
    }
  }
}

/// Returns the results that have started to count, and drops other results of the same shards. Must
/// hold the lock.
std::vector<std::pair<Block, ShardResult>> Runtime::State::take_counted() {
  std::vector<std::pair<Block, ShardResult>> results;
  for (const auto& [begin, count, device] : scheduler->take_counted()) {
    results.emplace_back(Block{begin, count}, std::move(delivered.at({begin, device})));
    delivered.erase(delivered.lower_bound({begin, 0}), delivered.lower_bound({begin + count, 0}));
    const auto first = shard_rows.begin() + begin;
    reports[device].rows += std::accumulate(first, first + count, int64_t{0});
  }
  return results;
}

/// Adds the results that count. Returns true if there were any. Must hold the lock, and releases it
/// while adding.
bool Runtime::State::accept(std::unique_lock<std::mutex>& lock) {
  auto results = take_counted();
  if (results.empty()) return false;
  ++accepting;
  lock.unlock();
  std::exception_ptr thrown;
  try {
    for (auto& [block, result] : results) job->accept(block.first, block.count, std::move(result));
  } catch (...) {
    thrown = std::current_exception();
  }
  lock.lock();
  --accepting;
  for (const auto& [block, result] : results) accepted += block.count;
  if (thrown) end_with(thrown);
  if (is_over()) finished.notify_one();
  changed.notify_all();
  return true;
}

/// Records the course of a job that began at begin_s. Must hold the lock.
void Runtime::State::finish_job(double begin_s) {
  last_job = {.seconds = now_seconds() - begin_s};
  double first = std::numeric_limits<double>::infinity(), last = begin_s;
  for (size_t i = 0; i < reports.size(); ++i) {
    last_job.rows.push_back(reports[i].rows - rows_before[i]);
    if (last_job.rows.back() == 0) continue;
    first = std::min(first, done_s[i]);
    last = std::max(last, done_s[i]);
  }
  last_job.apart_s = std::max(0.0, last - first);
  job_s += last_job.seconds;
}

std::string Runtime::State::speed_key(const std::string& key, size_t executor) const {
  return fmt::format("{}; {} of {} threads", key, reports[executor].name, threads.size());
}

Scheduler& Runtime::State::scheduler_for(const std::string& key) {
  if (const auto found = schedulers.find(key); found != schedulers.end()) return found->second;
  std::vector<SchedulerDevice> devices;
  for (size_t i = 0; i < executors.size(); ++i)
    devices.push_back({.name = reports[i].name,
                       .slots = executors[i].threads,
                       .ratio = executors[i].ratio,
                       .history = store->find(speed_key(key, i))});
  return schedulers.emplace(key, Scheduler(std::move(devices), options.scheduling)).first->second;
}

/// Waits until all shards are accepted, or an error ends the job. Must hold the lock.
void Runtime::State::drive(std::unique_lock<std::mutex>& lock) {
  while (!is_over()) {
    try {
      wake_s = error ? std::numeric_limits<double>::infinity() : scheduler->expire(now_seconds());
      if (!error && accept(lock)) continue;
    } catch (...) {
      end_with(std::current_exception());
      continue;
    }
    changed.notify_all();
    const std::chrono::duration<double> left(std::min(1e6, wake_s - now_seconds()));
    finished.wait_for(lock, left);
  }
}

Partial Runtime::run(const std::string& task, const Parameters& parameters, const Shards& shards) {
  DOVETAIL_CHECK(shards.size > 0, "task {} on no shards", task);
  return sum_of(run_blocks(task, parameters, shards, 0));
}

std::vector<BlockSum> Runtime::run_blocks(const std::string& task, const Parameters& parameters,
                                          const Shards& shards, int64_t place) {
  if (shards.size == 0) return {};
  State& s = *state_;
  for (const ExecutorSpec& executor : s.executors) find_task(task, executor.device.type());
  const auto job = std::make_shared<Job>(task, parameters, shards, place);
  std::unique_lock lock(s.mutex);
  DOVETAIL_CHECK(!s.job, "two jobs at a time");
  s.scheduler = &s.scheduler_for(job_key(task, parameters, shards));
  for (size_t i = 0; i < s.reports.size(); ++i)
    if (s.reports[i].left_out) s.scheduler->leave_out(i, *s.reports[i].left_out);
  s.shard_rows = job->shard_rows();
  s.accepted = 0;
  s.error = nullptr;
  const double begin_s = now_seconds();
  s.rows_before.clear();
  for (const Report& report : s.reports) s.rows_before.push_back(report.rows);
  s.done_s.assign(s.reports.size(), begin_s);
  s.scheduler->begin(s.shard_rows, begin_s);
  s.job = job;
  s.changed.notify_all();
  s.drive(lock);
  s.job = nullptr;
  s.delivered.clear();
  for (size_t i = 0; i < s.reports.size(); ++i) {
    Report& report = s.reports[i];
    if (report.left_out || !s.scheduler->left_out(i)) continue;
    report.left_out = s.scheduler->left_out(i);
    log_warning("hybrid: {} is left out: {}", report.name, *report.left_out);
  }
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
  s.finish_job(begin_s);
  lock.unlock();
  return job->take();
}

std::vector<Runtime::Report> Runtime::report() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<Report> reports = state_->reports;
  for (Report& report : reports)
    report.idle_s =
        std::max(0.0, state_->job_s * static_cast<double>(report.threads) - report.busy_s);
  return reports;
}

Runtime::LastJob Runtime::last_job() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last_job;
}

void Runtime::save_speeds() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  for (const auto& [key, scheduler] : s.schedulers)
    for (size_t i = 0; i < s.executors.size(); ++i)
      s.store->put(s.speed_key(key, i), scheduler.history(i));
  s.store->save();
}

}  // namespace dovetail::jobs
