#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dovetail::plan {

/// Host tier of a plan: memory for offloaded tensors, as an unnamed file in a folder or as plain
/// memory. It is slower and larger than the device tier, the arena of the plan. Reads and writes of
/// the file bypass the page cache (O_DIRECT) if the file system can. The whole tier is mapped, so
/// its data can be read and written between steps like any other memory.
class HostTier {
 public:
  /// Creates the file in `folder`, or uses memory if `folder` is empty. Throws UserError with the
  /// system's reason if the file cannot have this size.
  HostTier(const std::filesystem::path& folder, int64_t bytes);
  ~HostTier();
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  /// Copies `bytes` from `data` to the tier at `offset`. Addresses, offsets and sizes must be
  /// multiples of kPage (plan/model/packing.h), also in `read`.
  void write(int64_t offset, const std::byte* data, int64_t bytes);
  /// Copies `bytes` from the tier at `offset` to `data`.
  void read(int64_t offset, std::byte* data, int64_t bytes);
  /// Returns true if the tier is a file that bypasses the page cache.
  bool direct() const { return direct_; }
  /// Returns the first byte of the mapping, a multiple of kPage. `read` returns bytes written to
  /// the mapping, and the mapping shows bytes given to `write`. The system keeps a shared mapping
  /// coherent with direct reads and writes of its file. Accesses by mapping and by `read` or
  /// `write` must not happen at the same time.
  std::byte* data() const { return data_; }

 private:
  void map(int flags);

  int fd_ = -1;
  bool direct_ = false;
  std::byte* data_ = nullptr;
  int64_t mapped_bytes_ = 0;
};

/// Thread that runs copies one after the other, in the order of `enqueue`.
class CopyStream {
 public:
  CopyStream();
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  /// Queues a copy. Returns its number, counted from 1.
  int64_t enqueue(std::function<void()> copy);
  /// Waits until the copy with this number has ended. Rethrows the error if any copy so far has
  /// failed.
  void wait(int64_t number);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  // Number of copies queued so far, and number of copies that have ended.
  int64_t handed_over_ = 0, done_ = 0;
  // Error of a copy; later copies are skipped.
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace dovetail::plan
