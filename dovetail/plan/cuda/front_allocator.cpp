#include "dovetail/plan/cuda/front_allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "dovetail/base/operation.h"
#include "dovetail/plan/device/planned_allocator.h"

namespace dovetail::plan::cuda {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

// Regions of planned memory.
std::mutex regions_mutex;
std::vector<std::pair<const std::byte*, const std::byte*>> regions;

bool is_planned(const void* pointer) {
  const std::lock_guard lock(regions_mutex);
  return std::ranges::any_of(regions, [&](const auto& region) {
    return pointer >= region.first && pointer < region.second;
  });
}

void release_nothing(void*) {}

class FrontAllocator : public caching::CUDAAllocator {
 public:
  explicit FrontAllocator(caching::CUDAAllocator* behind) : behind_(behind) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (std::byte* place = planned(bytes))
      return {place, place, &release_nothing, c10::Device(c10::kCUDA, c10::cuda::current_device())};
    c10::DataPtr made = behind_->allocate(bytes);
    AllocationObserver* observer = observer_of(bytes);
    if (observer == nullptr) return made;
    const c10::Device device = made.device();
    void* pointer = made.release_context();
    observer->allocated(pointer, static_cast<int64_t>(bytes));
    return {pointer, pointer, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    behind_->copy_data(to, from, bytes);
  }
  void* raw_alloc(size_t bytes) override {
    if (std::byte* place = planned(bytes)) return place;
    return observed(behind_->raw_alloc(bytes), bytes);
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    if (std::byte* place = planned(bytes)) return place;
    return observed(behind_->raw_alloc_with_stream(bytes, stream), bytes);
  }
  void raw_delete(void* pointer) override {
    if (pointer == nullptr || is_planned(pointer)) return;
    if (AllocationObserver* observer = observer_of(1)) observer->freed(pointer);
    behind_->raw_delete(pointer);
  }

  // Forwarded as they are.
  void init(int device_count) override { behind_->init(device_count); }
  bool initialized() override { return behind_->initialized(); }
  double getMemoryFraction(c10::DeviceIndex device) override {
    return behind_->getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    behind_->setMemoryFraction(fraction, device);
  }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override {
    return behind_->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { behind_->enable(value); }
  bool isEnabled() const override { return behind_->isEnabled(); }
  void emptyCache(c10::MempoolId_t pool) override { behind_->emptyCache(pool); }
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    behind_->cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* pointer, size_t* size) override {
    return behind_->getBaseAllocation(pointer, size);
  }
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    behind_->recordStream(pointer, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return behind_->getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    behind_->resetAccumulatedStats(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override { behind_->resetPeakStats(device); }
  caching::SnapshotInfo snapshot(c10::MempoolId_t pool, bool traces) override {
    return behind_->snapshot(pool, traces);
  }
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    behind_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    behind_->endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    behind_->releasePool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return behind_->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> allocator) override {
    behind_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override {
    behind_->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    behind_->setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return behind_->checkPoolLiveAllocations(device, pool, expected);
  }
  caching::ShareableHandle shareIpcHandle(void* pointer) override {
    return behind_->shareIpcHandle(pointer);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return behind_->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return behind_->isHistoryEnabled(); }
  void recordHistory(bool enabled, caching::CreateContextFn context, size_t most,
                     caching::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    behind_->recordHistory(enabled, context, most, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& data) override {
    behind_->recordAnnotation(data);
  }
  void pushCompileContext(std::string& data) override { behind_->pushCompileContext(data); }
  void popCompileContext() override { behind_->popCompileContext(); }
  void setUserMetadata(const std::string& data) override { behind_->setUserMetadata(data); }
  std::string getUserMetadata() override { return behind_->getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    behind_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    behind_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override {
    behind_->enablePeerAccess(device, other);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                          cudaStream_t stream, bool peers) override {
    return behind_->memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                              c10::MempoolId_t pool) override {
    return behind_->getCheckpointState(device, pool);
  }
  caching::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
    return behind_->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return behind_->name(); }

 private:
  static std::byte* planned(size_t bytes) {
    return bytes == 0 ? nullptr : take_planned_place(c10::DeviceType::CUDA, bytes);
  }
  static AllocationObserver* observer_of(size_t bytes) {
    return bytes == 0 || !allocations_are_recorded() ? nullptr : allocation_observer();
  }
  static void* observed(void* pointer, size_t bytes) {
    if (AllocationObserver* observer = observer_of(bytes))
      observer->allocated(pointer, static_cast<int64_t>(bytes));
    return pointer;
  }
  /// Releases what `allocate` gave to an observer, also after the observation has ended.
  static void release(void* pointer) { caching::get()->raw_delete(pointer); }

  caching::CUDAAllocator* behind_;
};

}  // namespace

void install_front_allocator() {
  static FrontAllocator* const front = [] {
    auto* made = new FrontAllocator(caching::allocator.load());
    caching::allocator.store(made);
    return made;
  }();
  (void)front;
}

void add_region(const std::byte* begin, size_t bytes) {
  const std::lock_guard lock(regions_mutex);
  regions.emplace_back(begin, begin + bytes);
}

void remove_region(const std::byte* begin) {
  const std::lock_guard lock(regions_mutex);
  std::erase_if(regions, [&](const auto& region) { return region.first == begin; });
}

}  // namespace dovetail::plan::cuda
