#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dovetail::plan {

/// Memory that the allocations of the calling thread are given while an operation runs: the i-th of
/// more than zero bytes gets the i-th place. UserError if it asks for another size than was
/// planned, or for more places than there are: shapes have changed since the capture.
struct PlannedPlace {
  std::byte* address = nullptr;
  int64_t bytes = 0;
};
class PlannedAllocations {
 public:
  PlannedAllocations(const std::string& operation, const std::vector<PlannedPlace>& places);
  ~PlannedAllocations();
  PlannedAllocations(const PlannedAllocations&) = delete;
  PlannedAllocations& operator=(const PlannedAllocations&) = delete;
};

/// A region whose addresses are handed out by PlannedAllocations. While it lives, what is allocated
/// in it is not freed one by one. The first one puts an allocator in front of the process's CPU
/// allocator, which stays: it passes on whatever is not planned.
class Arena {
 public:
  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Of them those that the system has in memory: all that have been used, if it has not paged any
  /// out.
  int64_t resident_bytes() const;
  /// Gives whole pages of a range back to the system. Their bytes are zero then.
  void drop(int64_t offset, int64_t bytes);
  /// The same for all outside `kept`: offsets and bytes, in order.
  void drop_all_but(const std::vector<std::pair<int64_t, int64_t>>& kept);

 private:
  std::byte* data_;
  int64_t bytes_;
};

}  // namespace dovetail::plan
