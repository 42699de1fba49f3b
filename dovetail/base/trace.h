#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail {

/// Seconds of a monotonic clock.
double now_seconds();

/// A named span of the calling thread in the trace; costs one relaxed load when no trace is being
/// recorded. `name` must be a literal (it is kept by pointer).
class TraceSpan {
 public:
  explicit TraceSpan(const char* name);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;

 private:
  const char* name_;
  int64_t begin_ns_ = -1;
};

/// Recording of one process at a time: our spans and, with `aten = true`, every ATen operator
/// (through RecordFunction).
void start_trace(bool aten);
/// Stop and write Chrome/Perfetto JSON (one lane a thread, microseconds) to `path`, atomically.
void stop_trace(const std::filesystem::path& path);
bool tracing();

/// Self time by kind of work over what was recorded since start_trace, in seconds of the recording
/// threads: GEMM (the spans of aten::mm, addmm, bmm, baddbmm, linear, matmul and their variants,
/// and of dovetail::gemm), attention (every span with "attention" or "flash" in its name, and all
/// that lies in one), the rest. Time in no span does not count. Valid until the next start_trace.
struct TraceShares {
  double gemm_s = 0, attention_s = 0, other_s = 0, total_s = 0;
};
TraceShares trace_shares();

}  // namespace dovetail
