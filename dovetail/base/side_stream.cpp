#include "dovetail/base/side_stream.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace dovetail {
namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

SideStream::SideStream(at::Device device) {
  if (!device.is_cpu())
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

void SideStream::run(const std::function<void()>& work) const {
  if (!stream_) return work();
  const c10::StreamGuard guard(*stream_);
  work();
}

void SideStream::join() const {
  if (!stream_) return;
  c10::Event end(stream_->device_type());
  end.record(*stream_);
  end.block(current_stream(stream_->device()));
}

void SideStream::lend(const at::Tensor& made) const {
  if (stream_ && made.defined() && !made.is_cpu())
    made.record_stream(current_stream(stream_->device()));
}

void SideStream::synchronize() const {
  if (stream_) stream_->synchronize();
}

}  // namespace dovetail
