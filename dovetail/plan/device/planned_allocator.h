#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/plan/device/step_device.h"

namespace dovetail::plan {

/// Memory for one allocation of an operation.
struct PlannedPlace {
  std::byte* address = nullptr;
  int64_t bytes = 0;
};
/// Scope in which an operation runs and gets planned memory. Its i-th allocation of more than zero
/// bytes on the calling thread and on `device` gets `places[i]`. An allocation throws UserError if
/// its size differs from the planned size, or if no place is left. In both cases, shapes have
/// changed since the capture. `operation` is its name, for errors.
class PlannedAllocations {
 public:
  PlannedAllocations(const std::string& operation, const std::vector<PlannedPlace>& places,
                     c10::DeviceType device);
  ~PlannedAllocations();
  PlannedAllocations(const PlannedAllocations&) = delete;
  PlannedAllocations& operator=(const PlannedAllocations&) = delete;
};

/// Returns the address of the calling thread's next planned allocation on a device. Returns null
/// outside PlannedAllocations of this device, and inside UnrecordedAllocations (base/operation.h).
/// Allocators call this for each allocation of more than zero bytes. Throws UserError as
/// PlannedAllocations says.
std::byte* take_planned_place(c10::DeviceType device, size_t bytes);

/// Receives the allocations of a thread on a GPU, with the bytes that were asked for. The GPU's own
/// allocator reports rounded sizes.
class AllocationObserver {
 public:
  virtual ~AllocationObserver() = default;
  virtual void allocated(void* address, int64_t bytes) = 0;
  virtual void freed(void* address) = 0;
};
/// Scope in which an observer receives this thread's allocations on GPUs. Scopes do not nest.
class ObservedAllocations {
 public:
  explicit ObservedAllocations(AllocationObserver& observer);
  ~ObservedAllocations();
  ObservedAllocations(const ObservedAllocations&) = delete;
  ObservedAllocations& operator=(const ObservedAllocations&) = delete;
};
/// Returns the observer of this thread, or null. Device allocators report to it.
AllocationObserver* allocation_observer();

/// Region of the CPU's memory. The first arena installs an allocator in front of the process's CPU
/// allocator. The installed allocator remains, and forwards all allocations that are not planned.
/// Dropped bytes are zero.
class Arena : public Region {
 public:
  explicit Arena(int64_t bytes);
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const override { return data_; }
  int64_t bytes() const override { return bytes_; }
  int64_t resident_bytes() const override;
  void drop(int64_t offset, int64_t bytes) override;

 private:
  std::byte* data_;
  int64_t bytes_;
};

}  // namespace dovetail::plan
