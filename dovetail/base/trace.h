#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail {

/// Returns the time of a monotonic clock in seconds.
double now_seconds();

/// Named span of the calling thread in the trace, from construction to destruction. It costs one
/// relaxed load if no trace is being recorded. `name` must be a string literal, since its pointer
/// is stored.
class TraceSpan {
 public:
  explicit TraceSpan(const char* name);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;

 private:
  const char* name_;
  int64_t begin_ns_ = -1;
};

/// Starts recording; one recording per process at a time. Records TraceSpans and, if `aten` is
/// true, every ATen operator (through RecordFunction).
void start_trace(bool aten);
/// Stops recording and writes Chrome/Perfetto JSON to `path`, atomically. The trace has one lane
/// per thread and times in microseconds.
void stop_trace(const std::filesystem::path& path);
bool tracing();

/// Self time by kind of work since `start_trace`, in seconds summed over the recording threads.
/// `gemm_s` covers aten::mm, addmm, bmm, baddbmm, linear, matmul and their variants, and
/// dovetail::gemm. `attention_s` covers spans with "attention" or "flash" in their names, and all
/// spans nested in them. `other_s` covers the remaining spans. Time outside all spans does not
/// count. Valid until the next `start_trace`.
struct TraceShares {
  double gemm_s = 0, attention_s = 0, other_s = 0, total_s = 0;
};
TraceShares trace_shares();

}  // namespace dovetail
