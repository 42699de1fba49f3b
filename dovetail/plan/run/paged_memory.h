#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

namespace dovetail::plan {

/// Memory in a file without a name in a folder, mapped: where memory is short, the system writes it
/// to the file and takes its pages. Each piece is a mapping of its own; what has been given back
/// takes no room in the file either. May be used from several threads.
class PagedMemory {
 public:
  /// UserError with the system's reason when no file can be made in `folder`.
  explicit PagedMemory(const std::filesystem::path& folder);
  ~PagedMemory();
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  /// Zeros, at a multiple of kPage. UserError when the disk has no room for them.
  std::byte* allocate(int64_t bytes);
  void release(std::byte* address);

 private:
  std::filesystem::path folder_;
  int fd_ = -1;
  std::mutex mutex_;
  int64_t end_ = 0;                       // of the file, of which most may be holes
  std::map<std::byte*, int64_t> pieces_;  // address, bytes
};

/// While one lives, all CPU tensors of kPagedBytes or more that the process makes, but for those of
/// no plan (UnrecordedAllocations), lie in PagedMemory in `folder`: a step that needs more memory
/// than there is runs, slowly. They stay there until they are freed. The last one made counts, and
/// ends first.
class PagedAllocations {
 public:
  explicit PagedAllocations(const std::filesystem::path& folder);
  ~PagedAllocations();
  PagedAllocations(const PagedAllocations&) = delete;
  PagedAllocations& operator=(const PagedAllocations&) = delete;

 private:
  std::shared_ptr<PagedMemory> before_;
};

}  // namespace dovetail::plan
