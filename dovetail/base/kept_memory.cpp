#include "dovetail/base/kept_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

#include "dovetail/base/error.h"

namespace dovetail {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLeastKept = 128 << 10;  ///< bytes; malloc serves smaller blocks
constexpr size_t kWasteShare = 8;  ///< a reused block may exceed the request by 1 / kWasteShare

class KeptMemory : public c10::Allocator {
 public:
  explicit KeptMemory(c10::Allocator* behind) : behind_(behind) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kLeastKept) return behind_->allocate(bytes);
    const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
    void* address = take(rounded);
    if (address == nullptr) return behind_->allocate(bytes);  // throws, with the size
    c10::profiledCPUMemoryReporter().New(address, bytes);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void give_back() {
    const std::lock_guard lock(mutex_);
    while (!oldest_first_.empty()) unmap_oldest();
    most_in_use_ = in_use_;
  }

  static std::atomic<KeptMemory*> instance;

 private:
  struct Block {
    void* address;
    size_t bytes;
  };
  using FreeBlock = std::list<Block>::iterator;

  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    Block block{nullptr, 0};
    const auto found = free_.lower_bound(bytes);
    if (found != free_.end() && found->first <= bytes + bytes / kWasteShare) {
      block = *found->second;
      forget(found);
    } else {
      block = map(bytes);
      if (block.address == nullptr) return nullptr;
    }
    in_use_ += block.bytes;
    most_in_use_ = std::max(most_in_use_, in_use_);
    used_.emplace(block.address, block.bytes);
    return block.address;
  }

  Block map(size_t bytes) {
    const size_t limit = std::max(
        static_cast<size_t>(with_kept(static_cast<int64_t>(most_in_use_))), in_use_ + bytes);
    while (!oldest_first_.empty() && in_use_ + free_bytes_ + bytes > limit) unmap_oldest();
    for (;;) {
      void* address =
          ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (address != MAP_FAILED) return {address, bytes};
      if (oldest_first_.empty()) return {nullptr, 0};
      while (!oldest_first_.empty()) unmap_oldest();
    }
  }

  static void release(void* address) {
    KeptMemory& self = *instance;
    if (self.keep(address))
      c10::profiledCPUMemoryReporter().Delete(address);
    else
      self.behind_->raw_deallocate(address);
  }

  /// Returns false for a block of another allocator.
  bool keep(void* address) {
    const std::lock_guard lock(mutex_);
    const auto used = used_.find(address);
    if (used == used_.end()) return false;
    const Block block{address, used->second};
    used_.erase(used);
    in_use_ -= block.bytes;
    free_bytes_ += block.bytes;
    oldest_first_.push_back(block);
    // Inserted before blocks of equal size, so that the block freed last is reused first. Its pages
    // are still in the CPU caches.
    free_.emplace_hint(free_.lower_bound(block.bytes), block.bytes, std::prev(oldest_first_.end()));
    return true;
  }

  void forget(std::multimap<size_t, FreeBlock>::iterator block) {
    free_bytes_ -= block->first;
    oldest_first_.erase(block->second);
    free_.erase(block);
  }

  void unmap_oldest() {
    const auto oldest = oldest_first_.begin();
    ::munmap(oldest->address, oldest->bytes);
    auto block = free_.lower_bound(oldest->bytes);
    while (block->second != oldest) ++block;
    forget(block);
  }

  c10::Allocator* behind_;
  std::mutex mutex_;
  std::unordered_map<void*, size_t> used_;
  std::list<Block> oldest_first_;
  std::multimap<size_t, FreeBlock> free_;  ///< key: bytes
  size_t in_use_ = 0, free_bytes_ = 0, most_in_use_ = 0;
};

std::atomic<KeptMemory*> KeptMemory::instance = nullptr;

}  // namespace

void keep_freed_memory() {
  if (KeptMemory::instance != nullptr) return;
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);  // -1: malloc never trims
#endif
  KeptMemory::instance = new KeptMemory(
      c10::GetCPUAllocator());  // never destroyed, since tensors outlive static variables
  c10::SetCPUAllocator(KeptMemory::instance);
  DOVETAIL_CHECK(c10::GetCPUAllocator() == KeptMemory::instance,
                 "another CPU allocator has a higher priority");
}

void give_back_freed_memory() {
  if (KeptMemory::instance != nullptr) KeptMemory::instance.load()->give_back();
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace dovetail
