#pragma once

#include <chrono>
#include <memory>

namespace gloo {

/// Declaration of Gloo's class, whose header the torch wheel lacks. Objects are created and used
/// only inside libtorch_cpu.so. `setTimeout` is the only member that inline code in
/// ProcessGroupGloo.hpp calls.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
