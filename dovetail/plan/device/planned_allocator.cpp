#include "dovetail/plan/device/planned_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/plan/device/paged_memory.h"
#include "dovetail/plan/model/packing.h"

namespace dovetail::plan {
namespace {

struct Current {
  const std::string* operation = nullptr;
  const std::vector<PlannedPlace>* places = nullptr;
  c10::DeviceType device = c10::DeviceType::CPU;
  size_t next = 0;
};
thread_local Current current;
thread_local AllocationObserver* observer_now = nullptr;

class FrontAllocator : public c10::Allocator {
 public:
  static FrontAllocator& instance() {
    static FrontAllocator allocator;
    return allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    std::byte* address = bytes == 0 ? nullptr : take_planned_place(c10::DeviceType::CPU, bytes);
    if (address == nullptr) return unplanned(bytes);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::shared_ptr<PagedMemory> paged() {
    const std::unique_lock lock(mutex_);
    return paged_;
  }
  /// Sets the memory for future allocations, and returns the previous one.
  std::shared_ptr<PagedMemory> page(std::shared_ptr<PagedMemory> memory) {
    const std::unique_lock lock(mutex_);
    return std::exchange(paged_, std::move(memory));
  }

  void add(std::byte* begin, std::byte* end) {
    const std::unique_lock lock(mutex_);
    regions_.emplace_back(begin, end);
  }
  void remove(std::byte* begin) {
    const std::unique_lock lock(mutex_);
    std::erase_if(regions_, [&](const auto& region) { return region.first == begin; });
  }

 private:
  c10::DataPtr unplanned(size_t bytes) {
    const auto paged = allocations_are_recorded() ? this->paged() : nullptr;
    if (!paged || static_cast<int64_t>(bytes) < kPagedBytes) return behind_->allocate(bytes);
    std::byte* address = paged->allocate(static_cast<int64_t>(bytes));
    {
      const std::unique_lock lock(mutex_);
      paged_pieces_.emplace(address, paged);
    }
    c10::profiledCPUMemoryReporter().New(address, bytes);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }

  FrontAllocator() : behind_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, /*priority=*/1);
    DOVETAIL_CHECK(c10::GetCPUAllocator() == this, "another CPU allocator has a higher priority");
  }

  /// Releases an allocation. Planned memory needs no action. Allocations without a DataPtr
  /// (oneDNN's) are also released here, whichever allocator created them.
  static void release(void* pointer) {
    FrontAllocator& self = instance();
    std::shared_ptr<PagedMemory> paged;
    {
      const std::unique_lock lock(self.mutex_);
      for (const auto& [begin, end] : self.regions_)
        if (pointer >= begin && pointer < end) return;
      if (const auto piece = self.paged_pieces_.find(pointer); piece != self.paged_pieces_.end()) {
        paged = std::move(piece->second);
        self.paged_pieces_.erase(piece);
      }
    }
    if (!paged) return self.behind_->raw_deallocate(pointer);
    c10::profiledCPUMemoryReporter().Delete(pointer);
    paged->release(static_cast<std::byte*>(pointer));
  }

  c10::Allocator* behind_;
  std::mutex mutex_;
  std::vector<std::pair<std::byte*, std::byte*>> regions_;
  std::shared_ptr<PagedMemory> paged_;  // source of future allocations
  std::unordered_map<void*, std::shared_ptr<PagedMemory>>
      paged_pieces_;  // owner of each live allocation
};

}  // namespace

PlannedAllocations::PlannedAllocations(const std::string& operation,
                                       const std::vector<PlannedPlace>& places,
                                       c10::DeviceType device) {
  DOVETAIL_CHECK(current.places == nullptr, "planned operations do not nest");
  current = {&operation, &places, device, 0};
}

PlannedAllocations::~PlannedAllocations() { current = {}; }

std::byte* take_planned_place(c10::DeviceType device, size_t bytes) {
  if (current.places == nullptr || current.device != device || !allocations_are_recorded())
    return nullptr;
  const auto& places = *current.places;
  if (current.next >= places.size() || places[current.next].bytes != static_cast<int64_t>(bytes))
    throw UserError(fmt::format("plan: {} asks for {} bytes where {} were planned: its shapes "
                                "differ from the captured step",
                                *current.operation, bytes,
                                current.next < places.size() ? places[current.next].bytes : 0),
                    "capture and plan the step anew");
  return places[current.next++].address;
}

ObservedAllocations::ObservedAllocations(AllocationObserver& observer) {
  DOVETAIL_CHECK(observer_now == nullptr, "observed allocations do not nest");
  observer_now = &observer;
}

ObservedAllocations::~ObservedAllocations() { observer_now = nullptr; }

AllocationObserver* allocation_observer() { return observer_now; }

PagedAllocations::PagedAllocations(const std::filesystem::path& folder)
    : before_(FrontAllocator::instance().page(std::make_shared<PagedMemory>(folder))) {}

PagedAllocations::~PagedAllocations() { FrontAllocator::instance().page(std::move(before_)); }

Arena::Arena(int64_t bytes)
    : bytes_(std::max<int64_t>((bytes + kPage - 1) / kPage * kPage, kPage)) {
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  user_check(data != MAP_FAILED, "plan: the system has no {} bytes for the step", bytes_);
  data_ = static_cast<std::byte*>(data);
  FrontAllocator::instance().add(data_, data_ + bytes_);
}

int64_t Arena::resident_bytes() const {
  std::vector<unsigned char> pages(static_cast<size_t>(bytes_ / kPage));
  DOVETAIL_CHECK(::mincore(data_, static_cast<size_t>(bytes_), pages.data()) == 0, "mincore: {}",
                 std::strerror(errno));
  return kPage * std::count_if(pages.begin(), pages.end(),
                               [](unsigned char page) { return (page & 1) != 0; });
}

void Arena::drop(int64_t offset, int64_t bytes) {
  const int64_t begin = (offset + kPage - 1) / kPage * kPage,
                end = (offset + bytes) / kPage * kPage;
  if (begin < end) ::madvise(data_ + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

Arena::~Arena() {
  FrontAllocator::instance().remove(data_);
  ::munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace dovetail::plan
