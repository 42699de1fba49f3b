#pragma once

namespace gloo::transport {

class Device;

/// Deleted through its base by c10d's work objects.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport
