#include "dovetail/plan/device/paged_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/packing.h"

namespace dovetail::plan {

PagedMemory::PagedMemory(const std::filesystem::path& folder)
    : folder_(folder), fd_(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {
  user_check(fd_ >= 0, "plan: no file can be made in {}: {}", folder.string(),
             std::strerror(errno));
}

PagedMemory::~PagedMemory() {
  for (const auto& [address, bytes] : pieces_) ::munmap(address, static_cast<size_t>(bytes));
  ::close(fd_);
}

std::byte* PagedMemory::allocate(int64_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  // A full disk is an error here. Otherwise, the first write to the mapping would end the process.
  const int error = ::posix_fallocate(fd_, end_, bytes);
  user_check(error == 0, "plan: {} has no room for {} bytes: {}", folder_.string(), bytes,
             std::strerror(error));
  void* data =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, end_);
  user_check(data != MAP_FAILED, "plan: {} bytes of {} cannot be mapped: {}", bytes,
             folder_.string(), std::strerror(errno));
  end_ += bytes;
  auto* address = static_cast<std::byte*>(data);
  pieces_[address] = bytes;
  return address;
}

void PagedMemory::release(std::byte* address) {
  const std::lock_guard lock(mutex_);
  const auto piece = pieces_.find(address);
  DOVETAIL_CHECK(piece != pieces_.end(), "memory is given back that was not taken here");
  const auto bytes = static_cast<size_t>(piece->second);
  // Without MADV_REMOVE, the system would still write these pages to the file. Where it is not
  // supported, the system does so.
  ::madvise(address, bytes, MADV_REMOVE);
  ::munmap(address, bytes);
  pieces_.erase(piece);
}

}  // namespace dovetail::plan
