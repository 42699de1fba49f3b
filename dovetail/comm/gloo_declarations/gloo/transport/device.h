#pragma once

namespace gloo::transport {

class Device;

/// Declaration of Gloo's base class of buffers. c10d's work objects delete their buffers through
/// it.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport
