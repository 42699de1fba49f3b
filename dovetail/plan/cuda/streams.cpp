#include "dovetail/plan/cuda/streams.h"

#include <c10/cuda/CUDAException.h>

#include <string>

#include "dovetail/base/error.h"

namespace dovetail::plan::cuda {

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void Event::record(cudaStream_t stream) {
  if (event_ == nullptr) C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDefault));
  C10_CUDA_CHECK(cudaEventRecord(event_, stream));
}

void Event::block(cudaStream_t stream) const {
  if (event_ != nullptr) C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
}

double Event::seconds_since(const Event& begin) const {
  constexpr double kMillisecond_s = 1e-3;
  float milliseconds = 0;
  C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
  return milliseconds * kMillisecond_s;
}

CudaStreams::CudaStreams(c10::DeviceIndex device, int64_t bytes)
    : out_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)),
      in_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)) {
  if (bytes == 0) return;
  void* pinned = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&pinned, static_cast<size_t>(bytes), cudaHostAllocDefault);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // later calls must not report it again
    throw UserError("plan: the system cannot pin " + std::to_string(bytes) +
                        " bytes of memory for offloaded tensors: " + cudaGetErrorString(error),
                    "limit them by host_bytes, or give the process more memory");
  }
  pinned_ = static_cast<std::byte*>(pinned);
}

CudaStreams::~CudaStreams() {
  // Copies may still read or write the pinned memory.
  cudaStreamSynchronize(out_.stream());
  cudaStreamSynchronize(in_.stream());
  if (pinned_ != nullptr) cudaFreeHost(pinned_);
}

void CudaStreams::begin(size_t actions, bool timed) {
  compute_ = c10::cuda::getCurrentCUDAStream(out_.device_index()).stream();
  timed_ = timed;
  begins_.resize(actions);
  ends_.resize(actions);
  is_copied_.assign(actions, false);
  is_timed_.assign(actions, false);
  last_out_ = last_in_ = -1;
  if (timed_) started_.record(compute_);
}

void CudaStreams::compute_begins(int action) {
  if (timed_) begins_[action].record(compute_);
}

void CudaStreams::compute_ends(int action) {
  if (!timed_) return;
  ends_[action].record(compute_);
  is_timed_[action] = true;
}

void CudaStreams::copy(int action, const Copy& copy, cudaStream_t stream, bool to_host) {
  computed_.record(compute_);
  computed_.block(stream);
  for (const int wait : copy.waits)
    if (is_copied_[wait]) ends_[wait].block(stream);
  if (timed_) begins_[action].record(stream);
  std::byte* slow = pinned_ + copy.offset;
  C10_CUDA_CHECK(cudaMemcpyAsync(
      to_host ? slow : copy.address, to_host ? copy.address : slow, static_cast<size_t>(copy.bytes),
      to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream));
  ends_[action].record(stream);
  is_copied_[action] = true;
  is_timed_[action] = timed_;
}

void CudaStreams::offload(int action, Copy copy) {
  this->copy(action, copy, out_.stream(), /*to_host=*/true);
  last_out_ = action;
}

void CudaStreams::prefetch(int action, Copy copy) {
  this->copy(action, copy, in_.stream(), /*to_host=*/false);
  last_in_ = action;
}

void CudaStreams::await(int action) {
  if (is_copied_[action]) ends_[action].block(compute_);
}

std::vector<Timeline::Span> CudaStreams::end() {
  for (const int last : {last_out_, last_in_})
    if (last >= 0) await(last);
  if (!timed_) return {};
  C10_CUDA_CHECK(cudaStreamSynchronize(compute_));
  std::vector<Timeline::Span> spans(is_timed_.size());
  for (size_t a = 0; a < spans.size(); ++a)
    if (is_timed_[a])
      spans[a] = {.start_s = begins_[a].seconds_since(started_),
                  .end_s = ends_[a].seconds_since(started_)};
  return spans;
}

}  // namespace dovetail::plan::cuda
