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

/// The slow, large memory under the device tier: a file without a name in a folder, written and
/// read past the page cache where the file system can (O_DIRECT), or plain memory. Slots are one
/// for each tensor that goes there. All of it is mapped, so that what lies there can be read and
/// written between two steps as any other memory.
class HostTier {
 public:
  /// In `folder`; empty: in memory. UserError with the system's reason when the file cannot be made
  /// that large.
  HostTier(const std::filesystem::path& folder, int64_t bytes);
  ~HostTier();
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  /// Addresses, offsets and sizes are multiples of kPage.
  void write(int64_t offset, const std::byte* data, int64_t bytes);
  void read(int64_t offset, std::byte* data, int64_t bytes);
  bool direct() const { return direct_; }
  /// The first byte of the mapping, a multiple of kPage. What is written there, `read` gives, and
  /// what `write` has been given is seen there: the system keeps a shared mapping and direct reads
  /// and writes of its file the same, if they do not happen at the same time.
  std::byte* data() const { return data_; }

 private:
  void map(int flags);

  int fd_ = -1;
  bool direct_ = false;
  std::byte* data_ = nullptr;
  int64_t mapped_bytes_ = 0;
};

/// A thread that does one copy after the other, in the order in which they were handed over.
class CopyStream {
 public:
  CopyStream();
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  /// Returns the copy's number, counted from 1.
  int64_t enqueue(std::function<void()> copy);
  /// Until the copy of that number has ended; rethrows what a copy threw.
  void wait(int64_t number);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  int64_t handed_over_ = 0, done_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace dovetail::plan
