#pragma once

namespace gloo::transport {

class Device;

/// Base class through which c10d's work objects delete their buffers.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport
