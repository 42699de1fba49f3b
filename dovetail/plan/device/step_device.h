#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/plan/model/check.h"
#include "dovetail/plan/model/graph.h"

/// Devices that run planned steps: the CPU, and GPUs by the CUDA library.
namespace dovetail::plan {

/// Memory region for planned allocations: PlannedPlace::address points into it. Frees of single
/// allocations inside the region have no effect while the region exists.
class Region {
 public:
  virtual ~Region() = default;
  virtual std::byte* data() const = 0;
  virtual int64_t bytes() const = 0;
  /// Returns the bytes of the region that are in physical memory.
  virtual int64_t resident_bytes() const = 0;
  /// Releases the whole pages within a range, where memory has pages to release. Their bytes are
  /// undefined afterwards.
  virtual void drop(int64_t offset, int64_t bytes) = 0;
  /// Releases all pages outside the ranges `kept`. Each range is (offset, bytes); ranges are in
  /// ascending order.
  void drop_all_but(const std::vector<std::pair<int64_t, int64_t>>& kept);
};

/// Copy of a tensor between its place in a region and its place in the slow tier. `waits` are
/// earlier actions with a copy that must end before.
struct Copy {
  std::byte* address = nullptr;
  int64_t offset = 0;  ///< in the slow tier
  int64_t bytes = 0;
  std::vector<int> waits = {};
};

/// Streams of a planned step: computing, copies to the slow tier, and copies back. Work of one
/// stream runs in order. The calling thread gives all work; on a GPU it does not wait for it.
/// Actions are positions in Plan::actions. The slow tier is the memory to which a plan offloads.
class StepStreams {
 public:
  virtual ~StepStreams() = default;
  /// Begins a step of so many actions. `timed`: measure the times of its actions.
  virtual void begin(size_t actions, bool timed) = 0;
  /// Marks begin and end of an action that computes.
  virtual void compute_begins(int action) = 0;
  virtual void compute_ends(int action) = 0;
  /// Copies from a region to the slow tier, after all computing given so far.
  virtual void offload(int action, Copy copy) = 0;
  /// Copies from the slow tier to a region, after all computing given so far.
  virtual void prefetch(int action, Copy copy) = 0;
  /// Makes computing given later wait for the copy of `action`. Does nothing for other actions. On
  /// the CPU it throws UserError if a copy has failed.
  virtual void await(int action) = 0;
  /// Ends a step. Makes computing given later wait for all its copies. Returns the times of its
  /// actions, in seconds since its begin; empty if the step is not timed. A timed step waits for
  /// the device.
  virtual std::vector<Timeline::Span> end() = 0;
  /// Returns the slow tier if the device can compute in it, else null.
  virtual std::byte* slow_tier() = 0;
};

/// Device that runs planned steps.
class StepDevice {
 public:
  virtual ~StepDevice() = default;
  virtual c10::Device device() const = 0;
  /// Returns "CPU", or the name of the GPU.
  virtual std::string name() const = 0;
  /// Returns a region of at least `bytes`. Throws UserError if there is no memory for it.
  virtual std::unique_ptr<Region> region(int64_t bytes) const = 0;
  /// Returns streams with a slow tier of `bytes` in a file in `folder`, or in memory if `folder` is
  /// empty. Throws UserError if there is no room.
  virtual std::unique_ptr<StepStreams> streams(const std::filesystem::path& folder,
                                               int64_t bytes) const = 0;
  /// Returns memory for a tensor outside a region; it is in a file in `folder` if one is given.
  virtual c10::DataPtr own_memory(size_t bytes, const std::filesystem::path& folder) const = 0;
  /// Copies between addresses of this device and of the CPU, after all work given so far.
  virtual void copy(void* to, const void* from, size_t bytes) const = 0;
  /// Returns a 64-bit hash of memory of the device. Different contents give the same hash with
  /// probability 2^-64.
  virtual uint64_t fingerprint(const void* data, int64_t bytes) const = 0;
  /// Waits for all work given so far.
  virtual void wait() const = 0;
  /// Returns true if a region takes physical memory only where it is written.
  virtual bool fills_regions_on_write() const = 0;
  /// Measures the rate of copies to a slow tier and back, and how much they slow computing down.
  /// All values are medians over `rounds` copies of `bytes`.
  virtual Bandwidth bandwidth(const std::filesystem::path& folder, int64_t bytes,
                              int rounds) const = 0;
  /// Returns the bytes that the process holds in the device's memory, and their maximum since the
  /// last `reset_peak`. On a CPU: resident memory of the process.
  virtual int64_t held_bytes() const = 0;
  virtual int64_t peak_held_bytes() const = 0;
  virtual void reset_peak() const = 0;
  /// Returns freed memory to the system where that lowers `held_bytes`.
  virtual void give_back_freed() const = 0;
  /// Returns the bytes below which a copy is not worth its start.
  virtual int64_t least_copied_bytes() const = 0;
};

/// Returns the device `device`. Throws UserError if it is neither a CPU nor a CUDA GPU, or if this
/// build has no CUDA library.
const StepDevice& step_device(c10::Device device);
const StepDevice& cpu_step_device();

/// Name of the function in the CUDA library that makes devices:
/// `dovetail::plan::StepDevice* dovetail_plan_cuda_device(int index)`.
inline constexpr const char* kCudaDeviceEntry = "dovetail_plan_cuda_device";

}  // namespace dovetail::plan
