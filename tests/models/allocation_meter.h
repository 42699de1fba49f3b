#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

/// Counts the tensor bytes that this thread allocates while the meter lives. On the CPU this thread
/// also runs backward. Unlike resident memory the count is exact and reproducible.
namespace dovetail::testing {

class AllocationMeter {
 public:
  AllocationMeter()
      : counter_(std::make_shared<Counter>()),
        guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

  int64_t current() const { return counter_->current; }
  int64_t peak() const { return counter_->peak; }
  void reset_peak() { counter_->peak = counter_->current; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      current += size;
      peak = std::max(peak, current);
    }
    void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
    bool memoryProfilingEnabled() const override { return true; }
    int64_t current = 0, peak = 0;
  };
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace dovetail::testing
