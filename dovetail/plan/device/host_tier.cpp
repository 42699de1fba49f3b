#include "dovetail/plan/device/host_tier.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/packing.h"

namespace dovetail::plan {
namespace {

constexpr int64_t kMostBytesAtOnce = int64_t{1} << 30;  // one system call copies less than 2 GiB

std::string reason() { return std::strerror(errno); }

}  // namespace

HostTier::HostTier(const std::filesystem::path& folder, int64_t bytes) {
  mapped_bytes_ = std::max(bytes, kPage);
  if (folder.empty()) {
    map(MAP_PRIVATE | MAP_ANONYMOUS);
    return;
  }
  const int flags = O_TMPFILE | O_RDWR | O_CLOEXEC;
  fd_ = ::open(folder.c_str(), flags | O_DIRECT, 0600);
  direct_ = fd_ >= 0;
  if (fd_ < 0 && errno == EINVAL) fd_ = ::open(folder.c_str(), flags, 0600);
  user_check(fd_ >= 0, "plan: no file can be made in {}: {}", folder.string(), reason());
  if (const int error = ::posix_fallocate(fd_, 0, mapped_bytes_); error != 0) {
    ::close(fd_);
    throw UserError(fmt::format("plan: {} has no room for {} bytes: {}", folder.string(), bytes,
                                std::strerror(error)));
  }
  map(MAP_SHARED);
}

HostTier::~HostTier() {
  ::munmap(data_, static_cast<size_t>(mapped_bytes_));
  if (fd_ >= 0) ::close(fd_);
}

void HostTier::map(int flags) {
  void* address =
      ::mmap(nullptr, static_cast<size_t>(mapped_bytes_), PROT_READ | PROT_WRITE, flags, fd_, 0);
  if (address == MAP_FAILED) {
    const std::string why = reason();
    if (fd_ >= 0) ::close(fd_);
    throw UserError(
        fmt::format("plan: {} bytes of the host tier cannot be mapped: {}", mapped_bytes_, why));
  }
  data_ = static_cast<std::byte*>(address);
}

void HostTier::write(int64_t offset, const std::byte* data, int64_t bytes) {
  if (fd_ < 0) {
    std::memcpy(data_ + offset, data, static_cast<size_t>(bytes));
    return;
  }
  while (bytes > 0) {
    const auto done =
        ::pwrite(fd_, data, static_cast<size_t>(std::min(bytes, kMostBytesAtOnce)), offset);
    user_check(done > 0 || errno == EINTR, "plan: a tensor cannot be written to disk: {}",
               reason());
    if (done < 0) continue;
    data += done, offset += done, bytes -= done;
  }
}

void HostTier::read(int64_t offset, std::byte* data, int64_t bytes) {
  if (fd_ < 0) {
    std::memcpy(data, data_ + offset, static_cast<size_t>(bytes));
    return;
  }
  while (bytes > 0) {
    const auto done =
        ::pread(fd_, data, static_cast<size_t>(std::min(bytes, kMostBytesAtOnce)), offset);
    user_check(done > 0 || errno == EINTR, "plan: a tensor cannot be read back from disk: {}",
               reason());
    if (done < 0) continue;
    data += done, offset += done, bytes -= done;
  }
}

CopyStream::CopyStream() : thread_([this] { work(); }) {}

CopyStream::~CopyStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t CopyStream::enqueue(std::function<void()> copy) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(copy));
  changed_.notify_all();
  return ++handed_over_;
}

void CopyStream::wait(int64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number; });
  if (failure_) std::rethrow_exception(failure_);
}

void CopyStream::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto copy = std::move(queue_.front());
    queue_.pop_front();
    const bool failed = failure_ != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (!failed) copy();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) failure_ = failure;
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace dovetail::plan
