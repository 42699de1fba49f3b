#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail {

/// Returns the time of a monotonic clock in seconds.
double now_seconds();

/// Named time span of the calling thread in the trace, from construction to destruction. If no
/// trace is being recorded, it costs one relaxed atomic load. `name` must be a string literal,
/// since its pointer is stored.
class TraceSpan {
 public:
  explicit TraceSpan(const char* name);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;

 private:
  const char* name_;
  int64_t begin_ns_ = -1;
};

/// Starts recording a trace; one recording per process at a time. Records TraceSpans and, if `aten`
/// is true, also a span for every ATen operator (through torch's RecordFunction).
void start_trace(bool aten);
/// Stops recording and writes Chrome/Perfetto JSON to `path`, atomically. The trace has one lane
/// per thread and times in microseconds.
void stop_trace(const std::filesystem::path& path);
/// Returns true while a trace is being recorded.
bool tracing();

/// Self time of spans by kind of work, in seconds summed over threads. The self time of a span
/// excludes spans nested in it. Time outside all spans does not count.
///
/// `gemm_s` covers spans of aten::mm, addmm, bmm, baddbmm, linear, matmul and their variants, and
/// dovetail::gemm. `attention_s` covers spans with "attention" or "flash" in their names, and all
/// spans nested in them. `other_s` covers the remaining spans. `total_s` is the sum of the three.
struct TraceShares {
  double gemm_s = 0, attention_s = 0, other_s = 0, total_s = 0;
};
/// Returns the shares of the spans since the last `start_trace`.
TraceShares trace_shares();

}  // namespace dovetail
