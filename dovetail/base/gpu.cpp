#include "dovetail/base/gpu.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

namespace dovetail {
namespace {

constexpr const char* kTorchCuda = "libtorch_cuda.so";

}  // namespace

int count_gpu_device_files() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    count += name.starts_with("nvidia") && name.size() > 6 &&
             name.find_first_not_of("0123456789", 6) == std::string::npos;
  }
  return count;
}

std::string load_gpu() {
  static const std::string reason = [] {
    if (count_gpu_device_files() == 0)
      return std::string("this machine has no NVIDIA GPU (no file /dev/nvidia0)");
    // dlopen searches the run path of this library, which contains torch's folder.
    if (dlopen(kTorchCuda, RTLD_NOW | RTLD_GLOBAL) == nullptr)
      return fmt::format("{} does not load: {}", kTorchCuda, dlerror());
    if (!at::globalContext().hasCUDA())
      return std::string(
          "torch's CUDA library finds no usable GPU: is the driver too old, or "
          "CUDA_VISIBLE_DEVICES empty?");
    // The allocator has no statistics of a device until torch's context exists.
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    return std::string();
  }();
  return reason;
}

int count_gpus() { return at::accelerator::deviceCount(); }

void use_gpu(int index) { at::accelerator::setDeviceIndex(static_cast<c10::DeviceIndex>(index)); }

void use_own_stream() {
  const c10::impl::VirtualGuardImpl gpu(c10::DeviceType::CUDA);
  const c10::Device device = gpu.getDevice();
  if (gpu.getStream(device) == gpu.getDefaultStream(device))
    gpu.exchangeStream(gpu.getStreamFromGlobalPool(device));
}

at::Tensor copied_to(const at::Tensor& x, at::Device device) {
  if (!device.is_cuda() || !x.is_cpu() || x.numel() == 0) return x.to(device);
  return x.pin_memory().to(device, x.scalar_type(), /*non_blocking=*/true);
}

GpuMemory gpu_memory() {
  const c10::DeviceIndex device = at::accelerator::getDeviceIndex();
  const auto stats = at::accelerator::getDeviceStats(device);
  const auto [free_bytes, total_bytes] = at::accelerator::getMemoryInfo(device);
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {.free_bytes = free_bytes,
          .total_bytes = total_bytes,
          .allocated_bytes = static_cast<uint64_t>(stats.allocated_bytes[kAll].current),
          .peak_bytes = static_cast<uint64_t>(stats.allocated_bytes[kAll].peak)};
}

uint64_t gpu_allocated_bytes() {
  const auto stats = at::accelerator::getDeviceStats(at::accelerator::getDeviceIndex());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<uint64_t>(stats.allocated_bytes[kAll].current);
}

void reset_gpu_peak() { at::accelerator::resetPeakStats(at::accelerator::getDeviceIndex()); }

void synchronize_gpu() { at::accelerator::synchronizeDevice(at::accelerator::getDeviceIndex()); }

}  // namespace dovetail
