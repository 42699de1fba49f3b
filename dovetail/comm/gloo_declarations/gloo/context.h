#pragma once

#include <chrono>
#include <memory>

namespace gloo {

/// Created and used only inside libtorch_cpu.so. ProcessGroupGloo.hpp calls only this function
/// inline.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
