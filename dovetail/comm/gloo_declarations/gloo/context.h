#pragma once

#include <chrono>
#include <memory>

namespace gloo {

/// Made and used inside libtorch_cpu.so only; ProcessGroupGloo.hpp calls this one function inline.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
