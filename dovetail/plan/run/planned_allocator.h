#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dovetail::plan {

/// Memory for one allocation of an operation.
struct PlannedPlace {
  std::byte* address = nullptr;
  int64_t bytes = 0;
};
/// Scope in which an operation runs and gets planned memory. Its i-th allocation of more than zero
/// bytes on the calling thread gets `places[i]`. An allocation throws UserError if its size differs
/// from the planned size, or if no place is left. In both cases, shapes have changed since the
/// capture. `operation` is its name, for errors.
class PlannedAllocations {
 public:
  PlannedAllocations(const std::string& operation, const std::vector<PlannedPlace>& places);
  ~PlannedAllocations();
  PlannedAllocations(const PlannedAllocations&) = delete;
  PlannedAllocations& operator=(const PlannedAllocations&) = delete;
};

/// Memory region for planned allocations: PlannedPlace::address points into it. Frees of single
/// allocations inside the region have no effect while the arena exists. The first arena installs an
/// allocator in front of the process's CPU allocator. The installed allocator remains, and forwards
/// all allocations that are not planned.
class Arena {
 public:
  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Returns the bytes of the region that are in physical memory. These are all bytes that were
  /// ever used, unless the system has paged some out.
  int64_t resident_bytes() const;
  /// Releases the whole pages within a range to the operating system. Their bytes are zero
  /// afterwards.
  void drop(int64_t offset, int64_t bytes);
  /// Releases all pages outside the ranges `kept` to the operating system. Each range is (offset,
  /// bytes); ranges are in ascending order.
  void drop_all_but(const std::vector<std::pair<int64_t, int64_t>>& kept);

 private:
  std::byte* data_;
  int64_t bytes_;
};

}  // namespace dovetail::plan
