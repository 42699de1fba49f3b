#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

namespace dovetail::plan {

/// Memory that is mapped from an unnamed file in a folder. If memory is short, the system writes
/// pages to the file and reuses their memory. Each allocation is a separate mapping. When memory is
/// released, its space in the file is released, too. May be used from several threads.
class PagedMemory {
 public:
  /// Throws UserError with the system's reason if no file can be created in `folder`.
  explicit PagedMemory(const std::filesystem::path& folder);
  ~PagedMemory();
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  /// Returns memory filled with zeros. Its address is a multiple of kPage (plan/model/packing.h).
  /// Throws UserError if the disk has no space for it.
  std::byte* allocate(int64_t bytes);
  /// Releases memory; `address` comes from `allocate`.
  void release(std::byte* address);

 private:
  std::filesystem::path folder_;
  int fd_ = -1;
  std::mutex mutex_;
  int64_t end_ = 0;                       // end of the file; most of the file may be holes
  std::map<std::byte*, int64_t> pieces_;  // bytes of each mapping, by address
};

/// Scope in which CPU tensors of kPagedBytes or more are allocated from PagedMemory in `folder`,
/// process-wide. A step that needs more memory than the machine has then runs slowly instead of
/// failing. Allocations within the scope of UnrecordedAllocations (base/operation.h) are excluded.
/// Tensors stay in PagedMemory until they are freed. Scopes may nest: the last one created applies,
/// and must end first.
class PagedAllocations {
 public:
  explicit PagedAllocations(const std::filesystem::path& folder);
  ~PagedAllocations();
  PagedAllocations(const PagedAllocations&) = delete;
  PagedAllocations& operator=(const PagedAllocations&) = delete;

 private:
  std::shared_ptr<PagedMemory> before_;  // source of allocations outside this scope
};

}  // namespace dovetail::plan
