#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "dovetail/plan/device/step_device.h"

namespace dovetail::plan::cuda {

/// Event of a stream, made at its first record. Its time can be read.
class Event {
 public:
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;

  void record(cudaStream_t stream);
  /// Makes `stream` wait for the last record. Does nothing before the first one.
  void block(cudaStream_t stream) const;
  /// Returns the seconds from `begin` to this event. Both must have happened.
  double seconds_since(const Event& begin) const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Streams of a GPU: torch's current stream computes, and one stream for each direction copies. The
/// slow tier is pinned memory of the CPU, so that copies run beside computing.
class CudaStreams : public StepStreams {
 public:
  /// Throws UserError if the system cannot pin `bytes`.
  CudaStreams(c10::DeviceIndex device, int64_t bytes);
  ~CudaStreams() override;

  void begin(size_t actions, bool timed) override;
  void compute_begins(int action) override;
  void compute_ends(int action) override;
  void offload(int action, Copy copy) override;
  void prefetch(int action, Copy copy) override;
  void await(int action) override;
  std::vector<Timeline::Span> end() override;
  std::byte* slow_tier() override { return nullptr; }

 private:
  void copy(int action, const Copy& copy, cudaStream_t stream, bool to_host);

  std::byte* pinned_ = nullptr;
  const c10::cuda::CUDAStream out_, in_;
  cudaStream_t compute_ = nullptr;  // torch's current stream in this step
  bool timed_ = false;
  Event started_, computed_;
  std::vector<Event> begins_, ends_;        // per action
  std::vector<bool> is_copied_, is_timed_;  // per action: in this step
  int last_out_ = -1, last_in_ = -1;        // last copies of this step
};

}  // namespace dovetail::plan::cuda
