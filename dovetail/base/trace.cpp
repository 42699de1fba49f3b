#include "dovetail/base/trace.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"

namespace dovetail {
namespace {

// About 130 MB per thread. A forgotten trace is cut off and does not end the run.
constexpr size_t kMaxEventsPerThread = size_t{1} << 22;

enum OperatorKind : uint8_t { kGemm, kAttention, kOther };

struct Event {
  int32_t name;
  int64_t begin_ns, end_ns;
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

OperatorKind kind_of(std::string_view name) {
  static constexpr std::array<std::string_view, 10> kGemmNames = {
      "aten::mm",         "aten::addmm",      "aten::bmm",      "aten::baddbmm",
      "aten::linear",     "aten::matmul",     "dovetail::gemm", "aten::mkldnn_linear",
      "aten::_scaled_mm", "aten::_grouped_mm"};
  if (name.find("attention") != name.npos || name.find("flash") != name.npos) return kAttention;
  return std::find(kGemmNames.begin(), kGemmNames.end(), name) != kGemmNames.end() ? kGemm : kOther;
}

// Returns the name that the system has for the calling thread.
std::string name_of_this_thread() {
  std::array<char, 16> name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return name.data();
}

// Events recorded by one thread. Only that thread writes them. Its mutex is contended only by the
// reader at the end.
struct ThreadLog {
  std::mutex mutex;
  int64_t thread_id = ::syscall(SYS_gettid);
  std::string thread_name = name_of_this_thread();
  std::vector<Event> events;
  std::vector<std::string> names;
  std::unordered_map<std::string, int32_t> name_index;
  uint64_t dropped = 0;
};

// Start time of the current recording; -1 if none is active. Spans that began earlier belong to a
// previous recording.
std::atomic<int64_t> g_recording_since{-1};

struct Recorder {
  std::mutex mutex;
  std::vector<std::shared_ptr<ThreadLog>> logs;
  at::CallbackHandle aten_callback = at::INVALID_CALLBACK_HANDLE;
};

// Never destroyed, since threads may still end spans while the process exits.
Recorder& recorder() {
  static auto* const instance = new Recorder;
  return *instance;
}

ThreadLog& thread_log() {
  thread_local const std::shared_ptr<ThreadLog> log = [] {
    auto created = std::make_shared<ThreadLog>();
    const std::lock_guard lock(recorder().mutex);
    recorder().logs.push_back(created);
    return created;
  }();
  return *log;
}

void record(ThreadLog& log, const char* name, int64_t begin_ns) {
  const int64_t end_ns = now_ns();
  const std::lock_guard lock(log.mutex);
  const int64_t since = g_recording_since.load(std::memory_order_relaxed);
  if (since < 0 || begin_ns < since) return;
  if (log.events.size() >= kMaxEventsPerThread) {
    ++log.dropped;
    return;
  }
  const auto [entry, added] =
      log.name_index.try_emplace(name, static_cast<int32_t>(log.names.size()));
  if (added) log.names.emplace_back(name);
  log.events.push_back({entry->second, begin_ns, end_ns});
}

struct OperatorContext : at::ObserverContext {
  int64_t begin_ns = now_ns();
};

std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction&) {
  return std::make_unique<OperatorContext>();
}

void operator_ends(const at::RecordFunction& function, at::ObserverContext* context) {
  record(thread_log(), function.name(), static_cast<OperatorContext*>(context)->begin_ns);
}

// Calls `visit(log)` for each thread's log, with the log locked.
template <class Visit>
void for_each_log(Visit visit) {
  const std::lock_guard lock(recorder().mutex);
  for (const auto& log : recorder().logs) {
    const std::lock_guard log_lock(log->mutex);
    visit(*log);
  }
}

void append_json(std::string& out, ThreadLog& log, int process) {
  out += fmt::format(
      ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}",
      process, log.thread_id, nlohmann::json(printable(log.thread_name)).dump());
  std::vector<std::string> quoted;
  for (const std::string& name : log.names)
    quoted.push_back(nlohmann::json(printable(name)).dump());
  for (const Event& event : log.events) {
    // Microseconds with three decimals from integers, which avoids rounding by a double.
    const int64_t duration = event.end_ns - event.begin_ns;
    out += fmt::format(
        ",\n{{\"ph\":\"X\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{}.{:03},\"dur\":{}.{:03}}}",
        quoted[static_cast<size_t>(event.name)], process, log.thread_id, event.begin_ns / 1000,
        event.begin_ns % 1000, duration / 1000, duration % 1000);
  }
}

// Adds the self time by kind for the events of one thread. The time of children is subtracted from
// their parent. Spans inside an attention span count as attention.
void add_shares(const ThreadLog& log, std::array<int64_t, 3>& self_ns) {
  std::vector<Event> events = log.events;
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  std::vector<OperatorKind> kinds;
  for (const std::string& name : log.names) kinds.push_back(kind_of(name));
  struct Open {
    int64_t end_ns;
    OperatorKind kind;
  };
  std::vector<Open> open;
  for (const Event& event : events) {
    while (!open.empty() && open.back().end_ns <= event.begin_ns) open.pop_back();
    OperatorKind kind = kinds[static_cast<size_t>(event.name)];
    // Asynchronous operators may end after the span in which they began. Only the part inside the
    // parent is subtracted from it.
    int64_t end_ns = event.end_ns;
    if (!open.empty()) {
      end_ns = std::min(end_ns, open.back().end_ns);
      if (open.back().kind == kAttention) kind = kAttention;
      self_ns[open.back().kind] -= end_ns - event.begin_ns;
    }
    self_ns[kind] += end_ns - event.begin_ns;
    open.push_back({end_ns, kind});
  }
}

}  // namespace

double now_seconds() { return static_cast<double>(now_ns()) * 1e-9; }

TraceSpan::TraceSpan(const char* name) : name_(name) {
  if (tracing()) begin_ns_ = now_ns();
}

TraceSpan::~TraceSpan() {
  if (begin_ns_ >= 0) record(thread_log(), name_, begin_ns_);
}

bool tracing() { return g_recording_since.load(std::memory_order_relaxed) >= 0; }

void start_trace(bool aten) {
  DOVETAIL_CHECK(!tracing(), "a trace is already being recorded");
  {
    const std::lock_guard lock(recorder().mutex);
    std::erase_if(recorder().logs, [](const auto& log) {
      return log.use_count() == 1;
    });  // logs of threads that have ended
  }
  for_each_log([](ThreadLog& log) {
    log.events.clear();
    log.names.clear();
    log.name_index.clear();
    log.dropped = 0;
  });
  g_recording_since.store(now_ns());
  if (!aten) return;
  recorder().aten_callback = at::addGlobalCallback(
      at::RecordFunctionCallback(operator_begins, operator_ends)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::USER_SCOPE}));
}

void stop_trace(const std::filesystem::path& path) {
  DOVETAIL_CHECK(tracing(), "no trace is being recorded");
  if (recorder().aten_callback != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(std::exchange(recorder().aten_callback, at::INVALID_CALLBACK_HANDLE));
  }
  g_recording_since.store(-1);

  AtomicFile file(path);
  const int process = ::getpid();
  file.write(fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":\"dovetail\"}}}}",
      process));
  uint64_t dropped = 0;
  for_each_log([&](ThreadLog& log) {
    std::string text;
    append_json(text, log, process);
    file.write(text);
    dropped += log.dropped;
  });
  file.write("\n]}\n");
  file.commit();
  if (dropped > 0)
    log_warning("the trace '{}' lacks its last {} events: trace fewer steps", path.string(),
                dropped);
}

TraceShares trace_shares() {
  std::array<int64_t, 3> self_ns{};
  for_each_log([&](const ThreadLog& log) { add_shares(log, self_ns); });
  TraceShares shares;
  shares.gemm_s = static_cast<double>(self_ns[kGemm]) * 1e-9;
  shares.attention_s = static_cast<double>(self_ns[kAttention]) * 1e-9;
  shares.other_s = static_cast<double>(self_ns[kOther]) * 1e-9;
  shares.total_s = shares.gemm_s + shares.attention_s + shares.other_s;
  return shares;
}

}  // namespace dovetail
