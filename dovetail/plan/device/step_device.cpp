#include "dovetail/plan/device/step_device.h"

#include <map>
#include <mutex>

#include "dovetail/base/error.h"
#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::plan {

const StepDevice& step_device(c10::Device device) {
  if (device.is_cpu()) return cpu_step_device();
  user_check(device.is_cuda(), "plan: a step runs on a CPU or a CUDA GPU, not on {}", device.str());
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<StepDevice>> gpus;
  const std::lock_guard lock(mutex);
  const int index = device.has_index() ? device.index() : 0;
  auto& gpu = gpus[index];
  if (gpu) return *gpu;
  void* make = ops::open_cuda_library(kCudaDeviceEntry);
  if (make == nullptr)
    throw UserError("plan: this build has no CUDA library, which runs planned steps on a GPU",
                    "build where nvcc is found, or plan a step on the CPU");
  gpu.reset(reinterpret_cast<StepDevice* (*)(int)>(make)(index));
  return *gpu;
}

}  // namespace dovetail::plan
