#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/median.h"
#include "dovetail/plan/cuda/front_allocator.h"
#include "dovetail/plan/cuda/launch.h"
#include "dovetail/plan/cuda/streams.h"
#include "dovetail/plan/device/step_device.h"

// GPU as a device of planned steps.

namespace dovetail::plan::cuda {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

/// One block of torch's allocator, which counts it.
class CudaRegion : public Region {
 public:
  explicit CudaRegion(int64_t bytes)
      : bytes_(std::max<int64_t>(bytes, 1)),
        data_(static_cast<std::byte*>(caching::get()->raw_alloc(static_cast<size_t>(bytes_)))) {
    add_region(data_, static_cast<size_t>(bytes_));
  }
  ~CudaRegion() override {
    remove_region(data_);
    caching::get()->raw_delete(data_);
  }
  CudaRegion(const CudaRegion&) = delete;
  CudaRegion& operator=(const CudaRegion&) = delete;

  std::byte* data() const override { return data_; }
  int64_t bytes() const override { return bytes_; }
  int64_t resident_bytes() const override { return bytes_; }
  void drop(int64_t, int64_t) override {}

 private:
  int64_t bytes_;
  std::byte* data_;
};

/// Matrix products, which dominate most training steps, and how long they take.
class Products {
 public:
  /// Queues some products.
  void queue() {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    begin_.record(stream);
    for (int i = 0; i < kProducts; ++i) at::mm_out(c_, a_, b_);
    end_.record(stream);
  }
  /// Returns the seconds that the last ones took. They must have ended.
  double seconds() const { return end_.seconds_since(begin_); }

 private:
  static constexpr int64_t kWidth = 2048;
  static constexpr int kProducts = 16;  // 0.3 TFLOP: 2.5 ms at 120 TFLOP/s
  const at::TensorOptions on_gpu_ = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
  at::Tensor a_ = at::ones({kWidth, kWidth}, on_gpu_), b_ = at::ones({kWidth, kWidth}, on_gpu_),
             c_ = at::empty({kWidth, kWidth}, on_gpu_);
  Event begin_, end_;
};

class CudaDevice : public StepDevice {
 public:
  explicit CudaDevice(int index) : index_(static_cast<c10::DeviceIndex>(index)) {
    const c10::cuda::CUDAGuard here(index_);
    install_front_allocator();
    void* sum = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&sum, sizeof *sum_));
    sum_ = static_cast<unsigned long long*>(sum);
  }
  c10::Device device() const override { return {c10::kCUDA, index_}; }
  std::string name() const override {
    cudaDeviceProp properties{};
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index_));
    return properties.name;
  }

  std::unique_ptr<Region> region(int64_t bytes) const override {
    const c10::cuda::CUDAGuard here(index_);
    try {
      return std::make_unique<CudaRegion>(bytes);
    } catch (const c10::OutOfMemoryError&) {
      const auto [free, total] = caching::get()->getMemoryInfo(index_);
      throw UserError("plan: a plan takes one block of " + std::to_string(bytes) + " bytes, but " +
                          device().str() + " has " + std::to_string(free) + " free of " +
                          std::to_string(total),
                      "lower the budget, or end other programs on the GPU");
    }
  }
  std::unique_ptr<StepStreams> streams(const std::filesystem::path& folder,
                                       int64_t bytes) const override {
    user_check(folder.empty(), "plan: a step on a GPU offloads to the CPU's memory, not to {}",
               folder.string());
    const c10::cuda::CUDAGuard here(index_);
    return std::make_unique<CudaStreams>(index_, bytes);
  }
  c10::DataPtr own_memory(size_t bytes, const std::filesystem::path&) const override {
    const c10::cuda::CUDAGuard here(index_);
    return caching::get()->allocate(bytes);
  }
  void copy(void* to, const void* from, size_t bytes) const override {
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
  }
  uint64_t fingerprint(const void* data, int64_t bytes) const override {
    const c10::cuda::CUDAGuard here(index_);
    unsigned long long sum = 0;
    C10_CUDA_CHECK(cudaMemsetAsync(sum_, 0, sizeof sum, stream()));
    add_fingerprint(data, bytes, sum_, stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    C10_CUDA_CHECK(cudaMemcpyAsync(&sum, sum_, sizeof sum, cudaMemcpyDeviceToHost, stream()));
    wait();
    return sum + static_cast<uint64_t>(bytes);
  }
  void wait() const override { C10_CUDA_CHECK(cudaStreamSynchronize(stream())); }
  bool fills_regions_on_write() const override { return false; }

  Bandwidth bandwidth(const std::filesystem::path&, int64_t bytes, int rounds) const override {
    DOVETAIL_CHECK(rounds > 0 && bytes > 0, "nothing to measure");
    constexpr double kLeastSlowdown = 0.002;  // prefers the plan that copies less
    const c10::cuda::CUDAGuard here(index_);
    const CudaRegion memory(bytes);
    CudaStreams streams(index_, bytes);
    Products products;
    std::vector<double> out, in, slowdowns;
    for (int round = 0; round <= rounds; ++round) {  // the first one is a warm-up
      streams.begin(2, /*timed=*/true);
      streams.offload(0, {.address = memory.data(), .bytes = bytes});
      streams.prefetch(1, {.address = memory.data(), .bytes = bytes, .waits = {0}});
      const std::vector<Timeline::Span> copied = streams.end();
      products.queue();
      wait();
      const double alone_s = products.seconds();
      streams.begin(1, /*timed=*/true);
      streams.offload(0, {.address = memory.data(), .bytes = bytes});
      products.queue();
      const std::vector<Timeline::Span> beside = streams.end();
      if (round == 0) continue;
      out.push_back(copied[0].end_s - copied[0].start_s);
      in.push_back(copied[1].end_s - copied[1].start_s);
      const double copying_s = std::min(beside[0].end_s - beside[0].start_s, products.seconds());
      slowdowns.push_back(
          std::clamp((products.seconds() - alone_s) / copying_s, kLeastSlowdown, 1.0));
    }
    const auto size = static_cast<double>(bytes);
    return {.to_host = size / median(std::move(out)),
            .to_device = size / median(std::move(in)),
            .slowdown = median(std::move(slowdowns))};
  }

  int64_t held_bytes() const override { return stats().current; }
  int64_t peak_held_bytes() const override { return stats().peak; }
  void reset_peak() const override { caching::get()->resetPeakStats(index_); }
  void give_back_freed() const override {}
  // A copy of 64 kB takes 7.5 microseconds on an H100, and 1.2 of them are transfer. At 1 MiB the
  // start takes a quarter of the time.
  int64_t least_copied_bytes() const override { return int64_t{1} << 20; }

 private:
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream(index_).stream(); }
  c10::CachingAllocator::Stat stats() const {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return caching::get()->getDeviceStats(index_).allocated_bytes[kAll];
  }

  c10::DeviceIndex index_;
  unsigned long long* sum_ = nullptr;  // in the GPU's memory
};

}  // namespace
}  // namespace dovetail::plan::cuda

extern "C" dovetail::plan::StepDevice* dovetail_plan_cuda_device(int index) {
  return new dovetail::plan::cuda::CudaDevice(index);
}
